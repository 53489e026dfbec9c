"""triton.language on the CPU: operations, types, layouts and control flow, compared with PyTorch.

A kernel here computes many operations at once, one row of the output each, so that few kernels cover a table.
"""
# ruff: noqa: N803 (constexpr arguments of Triton kernels are upper case)

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.ascend import libdevice

from thunder_npu.virtual_npu import triton_cpu

N, BLOCK = 1000, 1024
TRITON_NAME = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "i1",
}
HALF_ULP = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def run(kernel, *arguments, grid=(1,), soc="Ascend910B2", stage="linalg", **constants):
    """Compile for the arguments' types and run, without the JIT and without BiShengIR."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature, values = {}, []
    for name, value in zip(names, arguments, strict=True):
        if value is None:
            constants[name] = None
            continue
        values.append(value)
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + TRITON_NAME[value.dtype]
        else:
            signature[name] = {bool: "i1", float: "fp32", int: "i32" if abs(int(value)) < 2**31 else "i64"}[type(value)]
    compiled = triton_cpu.compile_kernel(kernel, signature, constants, soc=soc, stage=stage)
    compiled.run(grid, *values)
    assert triton_cpu.scratch_bytes_live() == 0
    return compiled


def assert_rounds_to(actual: torch.Tensor, exact: torch.Tensor, ulps: float = 1.0) -> None:
    """`actual` is `exact` (float64) within `ulps` half units in the last place of its dtype, plus the same of one."""
    bound = ulps * HALF_ULP[actual.dtype] * (1 + exact.abs())
    error = (actual.double() - exact).abs()
    assert bool((error <= bound).all()), f"worst error {(error / bound).max().item():.2f} times the bound"


# ---- elementwise -----------------------------------------------------------------------------------------------------


@triton.jit
def unary(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=1.0).to(tl.float32)
    a = tl.abs(v) + 0.125
    t = y.dtype.element_ty
    tl.store(y + 0 * n + i, tl.exp(v).to(t), mask=i < n)
    tl.store(y + 1 * n + i, tl.exp2(v).to(t), mask=i < n)
    tl.store(y + 2 * n + i, tl.log(a).to(t), mask=i < n)
    tl.store(y + 3 * n + i, tl.log2(a).to(t), mask=i < n)
    tl.store(y + 4 * n + i, tl.sqrt(a).to(t), mask=i < n)
    tl.store(y + 5 * n + i, tl.rsqrt(a).to(t), mask=i < n)
    tl.store(y + 6 * n + i, tl.sigmoid(v).to(t), mask=i < n)
    tl.store(y + 7 * n + i, tl.erf(v).to(t), mask=i < n)
    tl.store(y + 8 * n + i, tl.sin(v).to(t), mask=i < n)
    tl.store(y + 9 * n + i, tl.cos(v).to(t), mask=i < n)
    tl.store(y + 10 * n + i, tl.floor(v).to(t), mask=i < n)
    tl.store(y + 11 * n + i, tl.ceil(v).to(t), mask=i < n)
    tl.store(y + 12 * n + i, tl.math.tanh(v).to(t), mask=i < n)
    tl.store(y + 13 * n + i, tl.where(v > 0, v, -0.5 * v).to(t), mask=i < n)
    tl.store(y + 14 * n + i, tl.fma(v, v, a).to(t), mask=i < n)
    tl.store(y + 15 * n + i, tl.clamp(v, -0.5, 0.5).to(t), mask=i < n)


STAGES = pytest.mark.parametrize("stage", ["linalg", "hfusion"])


@STAGES
@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_unary(dtype: torch.dtype, stage: str) -> None:
    x = torch.randn(N).mul(2).to(dtype)
    y = torch.full((16, N), 7.0, dtype=dtype)
    run(unary, x, y, N, B=BLOCK, stage=stage)
    v = x.double()
    a = v.abs() + 0.125
    exact = [v.exp(), v.exp2(), a.log(), a.log2(), a.sqrt(), a.rsqrt(), v.sigmoid(), v.erf(), v.sin(), v.cos()]
    exact += [v.floor(), v.ceil(), v.tanh(), torch.where(v > 0, v, -0.5 * v), v * v + a, v.clamp(-0.5, 0.5)]
    # HFusion replaces erf, tanh, sin and others by its own approximations.
    single = {"linalg": 4.0, "hfusion": 12.0}[stage]
    assert_rounds_to(y, torch.stack(exact), ulps=single if dtype == torch.float32 else 1.01)


@triton.jit
def exponential(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.exp(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


def test_exp_is_float32_rounded_once_and_keeps_the_specials() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.cat([torch.linspace(-104, 89, 100_001), torch.tensor([inf, -inf, nan, 0.0, -0.0, 88.72284, -103.973])])
    y = torch.empty_like(x)
    run(exponential, x, y, x.numel(), grid=(triton.cdiv(x.numel(), BLOCK),), B=BLOCK)
    exact = x.double().exp().float()
    assert torch.equal(y.isnan(), exact.isnan())
    steps = (y.view(torch.int32) - exact.view(torch.int32)).abs()[~exact.isnan()]
    assert steps.max() <= 1
    assert (steps > 0).double().mean() < 1e-3


@triton.jit
def float_binary(x, z, y, flags, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, mask=i < n, other=1.0)
    b = tl.load(z + i, mask=i < n, other=1.0)
    tl.store(y + 0 * n + i, a + b, mask=i < n)
    tl.store(y + 1 * n + i, a - b, mask=i < n)
    tl.store(y + 2 * n + i, a * b, mask=i < n)
    tl.store(y + 3 * n + i, (a / b).to(y.dtype.element_ty), mask=i < n)
    tl.store(y + 4 * n + i, tl.maximum(a, b), mask=i < n)
    tl.store(y + 5 * n + i, tl.minimum(a, b), mask=i < n)
    tl.store(y + 6 * n + i, -a, mask=i < n)
    tl.store(flags + 0 * n + i, a < b, mask=i < n)
    tl.store(flags + 1 * n + i, a >= b, mask=i < n)
    tl.store(flags + 2 * n + i, a == b, mask=i < n)
    tl.store(flags + 3 * n + i, a != b, mask=i < n)


@STAGES
@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_float_arithmetic_rounds_to_nearest_even(dtype: torch.dtype, stage: str) -> None:
    a, b = torch.randn(N).to(dtype), torch.randn(N).to(dtype)
    b[::10] = a[::10]
    y, flags = torch.zeros(7, N, dtype=dtype), torch.zeros(4, N, dtype=torch.bool)
    run(float_binary, a, b, y, flags, N, B=BLOCK, stage=stage)
    expected = torch.stack([a + b, a - b, a * b, a / b, a.maximum(b), a.minimum(b), -a])
    assert torch.equal(y, expected)
    assert torch.equal(flags, torch.stack([a < b, a >= b, a == b, a != b]))


@triton.jit
def integer_binary(x, z, y, flags, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, mask=i < n, other=1)
    b = tl.load(z + i, mask=i < n, other=1)
    t = y.dtype.element_ty
    tl.store(y + 0 * n + i, (a + b).to(t), mask=i < n)
    tl.store(y + 1 * n + i, (a - b).to(t), mask=i < n)
    tl.store(y + 2 * n + i, (a * b).to(t), mask=i < n)
    tl.store(y + 3 * n + i, (a // b).to(t), mask=i < n)
    tl.store(y + 4 * n + i, (a % b).to(t), mask=i < n)
    tl.store(y + 5 * n + i, (a & b).to(t), mask=i < n)
    tl.store(y + 6 * n + i, (a | b).to(t), mask=i < n)
    tl.store(y + 7 * n + i, (a ^ b).to(t), mask=i < n)
    tl.store(y + 8 * n + i, (a << (b & 3)).to(t), mask=i < n)
    tl.store(y + 9 * n + i, (a >> (b & 3)).to(t), mask=i < n)
    tl.store(y + 10 * n + i, tl.maximum(a, b).to(t), mask=i < n)
    tl.store(flags + 0 * n + i, a < b, mask=i < n)
    tl.store(flags + 1 * n + i, a == b, mask=i < n)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_integer_arithmetic_wraps_and_truncates(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    a = torch.randint(limits.min, limits.max, (N,), dtype=dtype)
    b = torch.randint(1, min(limits.max, 2**40), (N,), dtype=dtype)
    y, flags = torch.zeros(11, N, dtype=dtype), torch.zeros(2, N, dtype=torch.bool)
    run(integer_binary, a, b, y, flags, N, B=BLOCK)
    quotient, shift = torch.div(a, b, rounding_mode="trunc"), b & 3
    expected = [a + b, a - b, a * b, quotient, a - quotient * b, a & b, a | b, a ^ b, a << shift, a >> shift]
    assert torch.equal(y, torch.stack([*expected, a.maximum(b)]))
    assert torch.equal(flags, torch.stack([a < b, a == b]))


@triton.jit
def divide(x, z, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, mask=i < n, other=0)
    b = tl.load(z + i, mask=i < n, other=0)
    tl.store(y + 0 * n + i, (a // b).to(y.dtype.element_ty), mask=i < n)
    tl.store(y + 1 * n + i, (a % b).to(y.dtype.element_ty), mask=i < n)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_integer_division_cannot_end_the_process(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    a = torch.tensor([limits.min, limits.min, 7, limits.max], dtype=dtype)
    b = torch.tensor([0, -1 if dtype.is_signed else 1, 2, 3]).to(dtype)
    y = torch.zeros(2, 4, dtype=dtype)
    run(divide, a, b, y, 4, B=16)
    wrapped = limits.min  # -limits.min, and 0 for an unsigned type
    assert y[0].tolist() == [torch.tensor(-1).to(dtype).item(), wrapped, 3, limits.max // 3]
    assert y[1, 1:].tolist() == [0, 1, limits.max % 3]


@triton.jit
def casts(x, f32, f16, bf16, i8, i16, i32, i64, b, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.store(f32 + i, v.to(tl.float32), mask=i < n)
    tl.store(f16 + i, v.to(tl.float16), mask=i < n)
    tl.store(bf16 + i, v.to(tl.bfloat16), mask=i < n)
    tl.store(i8 + i, v.to(tl.int8), mask=i < n)
    tl.store(i16 + i, v.to(tl.int16), mask=i < n)
    tl.store(i32 + i, v.to(tl.int32), mask=i < n)
    tl.store(i64 + i, v.to(tl.int64), mask=i < n)
    tl.store(b + i, v != 0, mask=i < n)


@pytest.mark.parametrize("dtype", TRITON_NAME, ids=str)
def test_casts(dtype: torch.dtype) -> None:
    x = torch.rand(N).mul(200).sub(100 if dtype.is_signed else 0).to(dtype)
    targets = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64]
    outputs = [torch.zeros(N, dtype=t) for t in [*targets, torch.bool]]
    if dtype == torch.uint8:
        x = x.clamp(max=127)  # beyond int8, a cast wraps, and torch's depends on the machine
    run(casts, x, *outputs, N, B=BLOCK)
    for output in outputs:
        assert torch.equal(output, x.to(output.dtype)), output.dtype


@triton.jit
def special_functions(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(y + 0 * B + i, libdevice.tanh(v))
    tl.store(y + 1 * B + i, libdevice.atan(v))
    tl.store(y + 2 * B + i, libdevice.tan(v))
    tl.store(y + 3 * B + i, libdevice.log1p(v))
    tl.store(y + 4 * B + i, libdevice.pow(v, v))
    tl.store(y + 5 * B + i, libdevice.reciprocal(v))
    tl.store(y + 6 * B + i, libdevice.relu(v - 1.0))
    tl.store(y + 7 * B + i, libdevice.round(v * 10.0 + 0.25))
    tl.store(y + 8 * B + i, libdevice.isnan(v).to(tl.float32) + libdevice.isinf(v).to(tl.float32))


def test_libdevice() -> None:
    x = torch.rand(64).add(0.25)
    y = torch.full((9, 64), 7.0)
    run(special_functions, x, y, B=64)
    v = x.double()
    exact = [
        v.tanh(),
        v.atan(),
        v.tan(),
        v.log1p(),
        v**v,
        1 / v,
        (v - 1).relu(),
        (x * 10 + 0.25).round().double(),
        0 * v,
    ]
    assert_rounds_to(y, torch.stack(exact), ulps=8)


# ---- reductions and scans --------------------------------------------------------------------------------------------


@triton.jit
def reduce_rows(x, totals, places, R, C, RB: tl.constexpr, CB: tl.constexpr, AXIS: tl.constexpr, KEPT: tl.constexpr):
    r, c = tl.arange(0, RB)[:, None], tl.arange(0, CB)[None, :]
    m = (r < R) & (c < C)
    p = x + r * C + c
    i = tl.arange(0, KEPT)
    k = i < (C if AXIS == 0 else R)
    t = totals.dtype.element_ty
    tl.store(totals + 0 * KEPT + i, tl.sum(tl.load(p, mask=m, other=0).to(tl.float32), axis=AXIS).to(t), mask=k)
    tl.store(totals + 1 * KEPT + i, tl.max(tl.load(p, mask=m, other=-float("inf")), axis=AXIS), mask=k)
    tl.store(totals + 2 * KEPT + i, tl.min(tl.load(p, mask=m, other=float("inf")), axis=AXIS), mask=k)
    tl.store(places + 0 * KEPT + i, tl.argmax(tl.load(p, mask=m, other=-float("inf")), axis=AXIS), mask=k)
    tl.store(places + 1 * KEPT + i, tl.argmin(tl.load(p, mask=m, other=float("inf")), axis=AXIS), mask=k)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_reductions(dtype: torch.dtype, axis: int) -> None:
    x = torch.randperm(13 * 50).sub(300).reshape(13, 50).div(8).to(dtype)
    kept = 64 if axis == 0 else 16
    totals, places = torch.zeros(3, kept, dtype=dtype), torch.zeros(2, kept, dtype=torch.int32)
    run(reduce_rows, x, totals, places, 13, 50, RB=16, CB=64, AXIS=axis, KEPT=kept)
    size = x.shape[1 - axis]
    assert_rounds_to(totals[0, :size], x.double().sum(axis))
    assert torch.equal(totals[1, :size], x.amax(axis))
    assert torch.equal(totals[2, :size], x.amin(axis))
    for row, found in ((0, x.amax(axis)), (1, x.amin(axis))):
        index = places[row, :size].long().unsqueeze(axis)
        assert torch.equal(x.gather(axis, index).squeeze(axis), found)


@triton.jit
def reduce_with_nan(x, y, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(y, tl.max(v, axis=0))
    tl.store(y + 1, tl.min(v, axis=0))
    tl.store(y + 2, tl.sum(v, axis=0))
    tl.store(y + 3, tl.max(v, axis=0, propagate_nan=True))


def test_reductions_over_nan() -> None:
    x = torch.arange(32.0).sub(10)
    x[3] = float("nan")
    y = torch.zeros(4)
    run(reduce_with_nan, x, y, B=32)
    assert y[:2].tolist() == [21.0, -10.0]
    assert y[2:].isnan().all()


@triton.jit
def scans(x, y, R: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    v = tl.load(x + i)
    tl.store(y + 0 * R * C + i, tl.cumsum(v, axis=1))
    tl.store(y + 1 * R * C + i, tl.cumsum(v, axis=0, reverse=True))
    tl.store(y + 2 * R * C + i, tl.cumprod(v, axis=0))
    tl.store(y + 3 * R * C + i, tl.flip(v))
    tl.store(y + 4 * R * C + i, tl.sort(v, descending=True))
    tl.store(y + 5 * R * C + i, tl.sort(v))


def test_scans_flip_and_sort() -> None:
    x = torch.rand(4, 16).add(0.5)
    y = torch.zeros(6, 4, 16)
    run(scans, x, y, R=4, C=16)
    backwards = x.flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(y[:3], torch.stack([x.cumsum(1), backwards, x.cumprod(0)]))
    assert torch.equal(y[3:], torch.stack([x.flip(1), x.sort(1, descending=True)[0], x.sort(1)[0]]))


# ---- shapes and memory -----------------------------------------------------------------------------------------------


@triton.jit
def transpose(x, y, R, C, RB: tl.constexpr, CB: tl.constexpr):
    r, c = tl.arange(0, RB), tl.arange(0, CB)
    v = tl.load(x + r[:, None] * C + c[None, :], mask=(r[:, None] < R) & (c[None, :] < C), other=0.0)
    tl.store(y + c[:, None] * R + r[None, :], tl.trans(v), mask=(c[:, None] < C) & (r[None, :] < R))


def test_transpose() -> None:
    x, y = torch.randn(13, 50), torch.zeros(50, 13)
    run(transpose, x, y, 13, 50, RB=16, CB=64)
    assert torch.equal(y, x.t())


@triton.jit
def middle_sum(x, y, A, M, C, AB: tl.constexpr, MB: tl.constexpr, CB: tl.constexpr):
    a, m, c = tl.arange(0, AB)[:, None, None], tl.arange(0, MB)[None, :, None], tl.arange(0, CB)[None, None, :]
    v = tl.load(x + a * M * C + m * C + c, mask=(a < A) & (m < M) & (c < C), other=0.0)
    a2, c2 = tl.arange(0, AB)[:, None], tl.arange(0, CB)[None, :]
    tl.store(y + a2 * C + c2, tl.sum(v, axis=1), mask=(a2 < A) & (c2 < C))


def test_three_dimensional_tile() -> None:
    x, y = torch.randn(3, 5, 17), torch.zeros(3, 17)
    run(middle_sum, x, y, 3, 5, 17, AB=4, MB=8, CB=32)
    torch.testing.assert_close(y, x.sum(1))


@triton.jit
def reshaped(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.reshape(tl.load(x + i), (B // 4, 4))
    tl.store(y + i, tl.reshape(tl.broadcast_to(tl.sum(v, axis=1)[:, None], (B // 4, 4)), (B,)))
    tl.store(y + B + tl.arange(0, 2 * B), tl.interleave(tl.load(x + i), -tl.load(x + i)))


def test_reshape_broadcast_interleave() -> None:
    x, y = torch.randn(64), torch.zeros(192)
    run(reshaped, x, y, B=64)
    torch.testing.assert_close(y[:64], x.view(16, 4).sum(1, keepdim=True).expand(16, 4).reshape(-1))
    assert torch.equal(y[64:], torch.stack([x, -x], 1).reshape(-1))


@triton.jit
def doubled(x, y, n, sx, sy, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i * sy, tl.load(x + i * sx, mask=i < n, other=0.0) * 2, mask=i < n)


STRIDED: dict[str, Callable[[], tuple[torch.Tensor, int]]] = {
    "every other": lambda: (torch.randn(200)[::2], 2),
    "expanded": lambda: (torch.randn(1).expand(100), 0),
    "offset": lambda: (torch.randn(150)[50:], 1),
}


@pytest.mark.parametrize("case", STRIDED)
def test_strides(case: str) -> None:
    x, stride = STRIDED[case]()
    y = torch.zeros(300)
    run(doubled, x, y, 100, stride, 3, B=128)
    assert torch.equal(y[::3], x * 2)
    assert not y.view(100, 3)[:, 1:].any()


def test_negative_stride() -> None:
    x, y = torch.randn(100), torch.zeros(100)
    run(doubled, x[99:], y, 100, -1, 1, B=128)
    assert torch.equal(y, x.flip(0) * 2)


@triton.jit
def permute(x, index, gathered, scattered, n, B: tl.constexpr):
    i = tl.arange(0, B)
    j = tl.load(index + i, mask=i < n, other=0)
    tl.store(gathered + i, tl.load(x + j, mask=i < n, other=0.0), mask=i < n)
    tl.store(scattered + j, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_gather_and_scatter(dtype: torch.dtype) -> None:
    x, index = torch.randn(N), torch.randperm(N).to(dtype)
    gathered, scattered = torch.zeros(N), torch.zeros(N)
    run(permute, x, index, gathered, scattered, N, B=BLOCK)
    assert torch.equal(gathered, x[index.long()])
    assert torch.equal(scattered, torch.zeros(N).index_copy(0, index.long(), x))


@triton.jit
def matmul(x, w, y, K, M: tl.constexpr, KB: tl.constexpr, P: tl.constexpr):
    m, p = tl.arange(0, M), tl.arange(0, P)
    total = tl.zeros((M, P), tl.float32)
    for start in range(0, K, KB):
        k = start + tl.arange(0, KB)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        total += tl.dot(a, tl.load(w + k[:, None] * P + p[None, :], mask=k[:, None] < K, other=0.0))
    tl.store(y + m[:, None] * P + p[None, :], total)


@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_dot(dtype: torch.dtype) -> None:
    x, w, y = torch.randn(16, 100).to(dtype), torch.randn(100, 16).to(dtype), torch.zeros(16, 16)
    run(matmul, x, w, y, 100, M=16, KB=32, P=16)
    torch.testing.assert_close(y, x.float() @ w.float(), rtol=1e-5, atol=1e-5)


# ---- programs, scalars, control flow ---------------------------------------------------------------------------------


@triton.jit
def add_all(x, total, column, largest, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + i)
    tl.atomic_add(total, tl.sum(v, axis=0))
    tl.atomic_add(column + i, v)
    tl.atomic_max(largest + i, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_atomics_lose_no_update(dtype: torch.dtype) -> None:
    x = torch.randint(-8, 8, (500, 64)).to(dtype)
    total, column, largest = torch.zeros(1, dtype=dtype), torch.zeros(64, dtype=dtype), torch.zeros(64, dtype=dtype)
    run(add_all, x, total, column, largest, grid=(500,), B=64)
    assert torch.equal(total, x.sum().to(dtype).view(1))
    assert torch.equal(column, x.sum(0).to(dtype))
    assert torch.equal(largest, x.amax(0).clamp(min=0))


@triton.jit
def coordinates(y):
    x, row, plane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = x + tl.num_programs(0) * (row + tl.num_programs(1) * plane)
    tl.store(y + place, x + 10 * row + 100 * plane + 1000 * tl.num_programs(2))


def test_three_dimensional_grid() -> None:
    y = torch.zeros(5, 4, 3, dtype=torch.int32)
    run(coordinates, y, grid=(3, 4, 5))
    plane, row, x = torch.meshgrid(torch.arange(5), torch.arange(4), torch.arange(3), indexing="ij")
    assert torch.equal(y.long(), x + 10 * row + 100 * plane + 5000)
    with pytest.raises(triton_cpu.OutOfBoundsStoreError, match="argument y, which has 8 bytes; 58 such stores"):
        run(coordinates, torch.zeros(2, dtype=torch.int32), grid=(3, 4, 5))


@triton.jit
def scalars(y, real, integer, flag, wide, optional):
    tl.store(y, real + integer)
    if flag:
        tl.store(y + 1, 1.0)
    else:
        tl.store(y + 1, 2.0)
    tl.store(y + 2, wide * 1.0)
    if optional is not None:
        tl.store(y + 3, tl.load(optional))


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("optional", [None, torch.tensor([9.0])], ids=["None", "tensor"])
def test_scalars_and_none(flag: bool, optional: torch.Tensor | None) -> None:
    y = torch.zeros(4)
    run(scalars, y, 1.5, -3, flag, 2**40, optional)
    assert y.tolist() == [-1.5, 1.0 if flag else 2.0, 2.0**40, 0.0 if optional is None else 9.0]


@triton.jit
def scaled(v, k):
    return v * k + 1


@triton.jit
def loops(x, y, total, n, k, B: tl.constexpr):
    for start in range(0, n, B):
        i = start + tl.arange(0, B)
        tl.store(y + i, scaled(tl.load(x + i, mask=i < n, other=0.0), k), mask=i < n)
    i = 0
    found = 0.0
    while i < n:
        found += tl.load(x + i)
        i += 2
    tl.store(total, found)


@pytest.mark.parametrize("n", [0, 1, 127, 1000])
def test_loops_with_run_time_bounds_and_nested_functions(n: int) -> None:
    x, y, total = torch.randn(max(n, 1)), torch.zeros(1000), torch.zeros(1)
    run(loops, x, y, total, n, 2.5, B=128)
    assert torch.equal(y[:n], x[:n] * 2.5 + 1)
    assert not y[n:].any()
    torch.testing.assert_close(total[0], x[:n:2].sum(), atol=1e-4, rtol=1e-5)


@triton.jit
def printing(x):
    tl.device_print("value", tl.load(x + tl.arange(0, 2)))
    tl.device_print("program", tl.program_id(0))


@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_device_print(dtype: torch.dtype, capfd: pytest.CaptureFixture[str]) -> None:
    run(printing, torch.tensor([1.5, 2.5], dtype=dtype), grid=(2,))
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == [
        line
        for p in range(2)
        for line in (
            f"pid ({p}, 0, 0) idx (0) value: 1.5",
            f"pid ({p}, 0, 0) idx (1) value: 2.5",
            f"pid ({p}, 0, 0) program: {p}",
        )
    ]


@triton.jit
def unsupported(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(y + i, libdevice.ldexp(v, v))


def test_an_operation_without_cpu_code_is_named() -> None:
    with pytest.raises(triton_cpu.UnsupportedOperationError, match="__hmf_ldexpf"):
        run(unsupported, torch.ones(16), torch.ones(16), B=16)


def test_what_cannot_run_after_hfusion_is_named() -> None:
    with pytest.raises(triton_cpu.UnsupportedOperationError, match=r"hfusion\.cumsum"):
        run(scans, torch.ones(4, 16), torch.ones(6, 4, 16), R=4, C=16, stage="hfusion")
    with pytest.raises(ValueError, match="stage 'hfusion' does not exist for Ascend950PR_9599"):
        run(unsupported, torch.ones(16), torch.ones(16), B=16, stage="hfusion", soc="Ascend950PR_9599")


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend950PR_9599"])
def test_other_socs_compute_the_same(soc: str) -> None:
    x = torch.randn(N).to(torch.bfloat16)
    results = [torch.zeros(16, N, dtype=torch.bfloat16) for _ in range(2)]
    run(unary, x, results[0], N, B=BLOCK)
    run(unary, x, results[1], N, B=BLOCK, soc=soc)
    assert torch.equal(*results)
