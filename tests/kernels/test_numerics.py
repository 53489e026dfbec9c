"""Numerics of the kernels' lowered code, against float64.

On the CPU this is the code that triton-ascend lowers for an Ascend910B2, with scratch memory full of NaN: whatever is
read outside a mask shows. Inputs lie in NaN, results between sentinels.
"""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_npu import kernels
from thunder_npu.kernels.launch import launch
from thunder_npu.kernels.tile_kernels import tile_base

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
INF, NAN = float("inf"), float("nan")
FORWARD = {"softmax": torch.softmax, "log_softmax": torch.log_softmax, "safe_softmax": torch._safe_softmax}
BACKWARD = ("softmax_backward", "log_softmax_backward")


def examples(count: int) -> settings:
    """Every example may compile a kernel."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def exact(op: str, tensors: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The op in float64, on inputs rounded as eager rounds them."""
    if op in FORWARD:
        return FORWARD[op](tensors[0].to(dtype).double(), dim)
    grad, result = (t.double() for t in tensors)
    if op == "softmax_backward":
        return grad * result - result * (grad * result).sum(dim, keepdim=True)
    return grad - result.exp() * grad.sum(dim, keepdim=True)


def tolerance(op: str, expected: torch.Tensor, tensors: tuple[torch.Tensor, ...], dim: int) -> torch.Tensor:
    """Error allowed: one rounding to the result's dtype is added by the caller; this is float32 arithmetic.

    Relative 1e-5 of what is summed or subtracted. The CPU lowering sums in sequence, hence not a few roundings.
    """
    if op in ("softmax", "safe_softmax"):
        return 1e-5 * expected
    magnitude = tensors[0].double().nan_to_num(0, 0, 0).abs()
    if op == "log_softmax":
        return 1e-6 * (1 + magnitude.amax(dim, keepdim=True) + expected.abs())
    result = tensors[1].double()
    terms = magnitude * result.abs() if op == "softmax_backward" else magnitude
    factor = result.abs() if op == "softmax_backward" else result.exp()
    return 1e-5 * (terms + factor * terms.sum(dim, keepdim=True))


def assert_accurate(op: str, ours: torch.Tensor, tensors: tuple[torch.Tensor, ...], dim: int) -> None:
    expected = exact(op, tensors, dim, ours.dtype)
    assert ours.shape == expected.shape
    allowed = tolerance(op, expected, tensors, dim)
    if ours.dtype in HALF:
        info = torch.finfo(ours.dtype)
        allowed = allowed + (0.5 * info.eps * expected.abs()).clamp(min=0.5 * info.smallest_normal * info.eps)
    error = (ours.double() - expected).abs()
    same = (ours.double() == expected) | (ours.isnan() & expected.isnan())
    wrong = ~(same | (error <= allowed * 1.0001 + 1e-37))
    assert not wrong.any(), f"{op}: {ours[wrong][:3]} instead of {expected[wrong][:3]}, allowed {allowed[wrong][:3]}"


def run(op: str, tensors: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The kernel's result, written between sentinels that must survive."""
    shape = tensors[0].shape
    buffer = torch.full((tensors[0].numel() + 192,), 77.0, dtype=dtype, device=device)
    result = buffer[64:-128].view(shape)
    launch(op, [t.to(device) if t.device.type != device else t for t in tensors], result, dim % max(1, len(shape)))
    assert (buffer[:64] == 77).all()
    assert (buffer[-128:] == 77).all()
    return result.cpu()


def in_nan(values: torch.Tensor, kind: str, device: str) -> torch.Tensor:
    """The values (all alike along the first axis for "expanded") in memory of another layout, with NaN in every gap."""
    stored = values.narrow(0, 0, 1) if kind == "expanded" and values.dim() else values
    order = list(range(stored.dim()))[:: -1 if kind == "reversed" else 1]
    sizes = [stored.shape[i] * (2 if kind == "strided" else 1) + (3 if kind == "padded" else 0) for i in order]
    memory = torch.full((torch.Size(sizes).numel() + 64,), NAN, dtype=values.dtype, device=device)
    step = 2 if kind == "strided" else 1
    view = memory[32:-32].view(sizes)[tuple(slice(0, step * stored.shape[i], step) for i in order)].permute(order)
    return view.copy_(stored).expand(values.shape)


LAYOUTS = ("contiguous", "padded", "strided", "reversed", "expanded")
SHAPES = (
    ((5, 197), -1), ((3, 1), -1), ((1, 1), 0), ((37, 8), 1), ((7, 129), 0), ((4, 30, 6), 1), ((2, 3, 4, 65), 2),
    ((130, 2), -1), ((2, 1000), -1),
)  # fmt: skip


@pytest.mark.parametrize("op", [*FORWARD, *BACKWARD])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_shapes(op: str, shape: tuple[int, ...], dim: int, device: str) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        tensors = make(op, shape, dim, dtype, dtype, 3.0)
        assert_accurate(op, run(op, tensors, dim, dtype, device), tensors, dim)


def make(
    op: str, shape: tuple[int, ...], dim: int, dtype_in: torch.dtype, dtype_out: torch.dtype, scale: float
) -> tuple[torch.Tensor, ...]:
    """CPU inputs of an op: x, or a gradient and a result."""
    x = torch.randn(shape) * scale
    if op in FORWARD:
        return (x.to(dtype_in),)
    result = FORWARD[op.removesuffix("_backward")](x, dim)
    return torch.randn(shape).to(dtype_in), result.to(dtype_in)


@pytest.mark.parametrize("op", [*FORWARD, *BACKWARD])
@pytest.mark.parametrize("layout", LAYOUTS)
@examples(4)
@given(data=st.data())
def test_any_layout(op: str, layout: str, data: st.DataObject, device: str) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 16, 33]), min_size=0, max_size=4), "shape"))
    dim = data.draw(st.integers(-max(1, len(shape)), max(1, len(shape)) - 1), "dim")
    dtype_in, dtype_out = data.draw(st.sampled_from(DTYPES), "in"), data.draw(st.sampled_from(DTYPES), "out")
    torch.manual_seed(data.draw(st.integers(0, 9), "seed"))
    tensors = make(op, shape, dim, dtype_in, dtype_out, data.draw(st.sampled_from([1.0, 30.0]), "scale"))
    # The first input has the layout; a result that a backward reads is sometimes strided too.
    laid = (in_nan(tensors[0], layout, device), *(in_nan(t, "padded", device) for t in tensors[1:]))
    values = (laid[0].cpu(), *tensors[1:])
    assert_accurate(op, run(op, laid, dim, dtype_out, device), values, dim)


@pytest.mark.parametrize("op", [*FORWARD, *BACKWARD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "padded", "expanded"])
def test_rows_of_several_blocks(op: str, dtype: torch.dtype, layout: str, device: str) -> None:
    """Wide rows: read twice, the last block only partly full."""
    torch.manual_seed(1)
    tensors = make(op, (3, 50257), -1, dtype, dtype, 2.0)
    first = in_nan(tensors[0], layout, device)
    values = (first.cpu(), *tensors[1:])
    assert_accurate(op, run(op, (first, *tensors[1:]), -1, dtype, device), values, -1)


@pytest.mark.parametrize("op", [*FORWARD, *BACKWARD])
def test_columns_of_several_blocks(op: str, device: str) -> None:
    torch.manual_seed(2)
    tensors = make(op, (2, 3000, 40), 1, torch.float32, torch.float32, 2.0)
    assert_accurate(op, run(op, tensors, 1, torch.float32, device), tensors, 1)


@pytest.mark.parametrize("op", [*FORWARD])
def test_a_row_of_a_million(op: str, device: str) -> None:
    torch.manual_seed(3)
    tensors = make(op, (1, 2**20), -1, torch.bfloat16, torch.float32, 2.0)
    assert_accurate(op, run(op, tensors, -1, torch.float32, device), tensors, -1)


def special_rows(width: int) -> torch.Tensor:
    rows = torch.full((10, width), -INF)
    rows[1, -1] = NAN
    rows[2, 0] = NAN
    rows[3, width // 2] = INF
    rows[4, -1] = 1.0
    rows[5, 0] = -2.0
    rows[6] = 0.0
    rows[7] = NAN
    rows[8] = torch.linspace(-60000, 60000, width)
    rows[9, 0], rows[9, -1] = INF, -INF
    return rows


@pytest.mark.parametrize("op", [*FORWARD])
@pytest.mark.parametrize("width", [3, 197, 30000])
@pytest.mark.parametrize("dim", [0, 1])
def test_infinities_and_nan_as_eager(op: str, width: int, dim: int, device: str) -> None:
    """Rows of -inf only, NaN beside -inf, +inf, -inf until the last block, and large values."""
    x = special_rows(width) if dim == 1 else special_rows(width).t().contiguous()
    for dtype in (torch.float32, torch.bfloat16):
        ours = run(op, (x.to(dtype),), dim, dtype, device)
        eager = FORWARD[op](x.to(dtype), dim)
        assert torch.equal(ours.isnan(), eager.isnan())
        assert ours[eager == 0].eq(0).all()
        torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("width", [40, 30000])
def test_dead_rows_have_zero_gradient(width: int, device: str) -> None:
    x = torch.full((4, width), -INF)
    x[1] = torch.randn(width)
    result = kernels.safe_softmax(x.to(device), -1)
    grad = torch.randn(4, width).to(device)
    gradient = kernels.safe_softmax_backward(grad, result, -1, torch.float32).cpu()
    assert result.cpu()[[0, 2, 3]].eq(0).all()
    assert gradient[[0, 2, 3]].eq(0).all()
    assert gradient[1].ne(0).any()


@examples(12)
@given(width=st.sampled_from([1, 2, 13, 64, 300]), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_properties(width: int, dtype: torch.dtype, seed: int, device: str) -> None:
    torch.manual_seed(seed)
    # Multiples of 1/8 below 8: shifting them by 1 is exact in every dtype.
    x = (torch.randint(-56, 56, (24, width)) / 8).to(dtype).to(device)
    eps = torch.finfo(dtype).eps
    p = kernels.softmax(x, -1)
    assert ((p >= 0) & (p <= 1)).all()
    assert (p.double().sum(-1) - 1).abs().max() <= 1e-5 + eps
    assert torch.equal(kernels.softmax(x + 1, -1), p), "shift invariance"
    order = torch.randperm(width, device=device)
    shuffled = kernels.softmax(x[:, order].contiguous(), -1)
    torch.testing.assert_close(shuffled, p[:, order], rtol=1e-5 + eps, atol=torch.finfo(dtype).tiny * eps)
    log_p = kernels.log_softmax(x, -1, torch.float32)
    torch.testing.assert_close(log_p.exp(), kernels.softmax(x, -1, torch.float32), rtol=1e-5, atol=1e-9)
    grad = torch.randn(24, width, device=device)
    for name, result in (("softmax", kernels.softmax(x, -1, torch.float32)), ("log_softmax", log_p)):
        gradient = getattr(kernels, f"{name}_backward")(grad, result, -1, torch.float32)
        bound = 1e-5 * (1 + grad.abs().sum(-1))
        assert (gradient.sum(-1).abs() <= bound).all(), f"a row of {name}'s gradient sums to zero"


@pytest.mark.parametrize("call", [kernels.softmax, kernels.log_softmax, kernels.safe_softmax])
def test_results_are_contiguous_and_of_the_dtype_asked_for(call: Callable[..., torch.Tensor], device: str) -> None:
    x = torch.randn(6, 5, 4, device=device).permute(2, 0, 1)
    for dtype in (None, *DTYPES):
        result = call(x, 0, dtype)
        assert result.is_contiguous()
        assert result.dtype == (dtype or torch.float32)
        assert result.device == x.device


def test_empty_and_scalar_tensors(device: str) -> None:
    for shape, dim in (((0, 5), 1), ((5, 0), 1), ((0,), 0), ((2, 0, 3), 0)):
        empty = torch.empty(shape, device=device)
        assert kernels.softmax(empty, dim).shape == shape
        assert kernels.softmax_backward(empty, empty, dim, torch.bfloat16).dtype == torch.bfloat16
    for dim in (0, -1):
        assert kernels.softmax(torch.tensor(3.0, device=device), dim).item() == 1
        assert kernels.log_softmax(torch.tensor(3.0, device=device), dim).item() == 0
        assert kernels.softmax(torch.tensor(INF, device=device), dim).isnan()


@triton.jit
def store_base(out_ptr, tile, rows, o1, o2, s0, s1, s2, row_stride, ROWS: tl.constexpr, OUTER: tl.constexpr):  # noqa: N803
    tl.store(out_ptr, tile_base(tile, rows, o1, o2, s0, s1, s2, row_stride, ROWS, OUTER))


@pytest.mark.parametrize(("outer", "rows", "rows_per_tile"), [(1, 2**31 + 2**20, 1000), (6, 1000, 64), (3, 2**30, 512)])
def test_tiles_past_2_to_the_31_elements(outer: int, rows: int, rows_per_tile: int, device: str) -> None:
    """The 64-bit offset of the first, a middle and the last tile, without the memory behind them."""
    out = torch.zeros(1, dtype=torch.int64, device=device)
    stride, row_tiles = 7, -(-rows // rows_per_tile)
    for tile in (0, row_tiles * outer // 2, row_tiles * outer - 1):
        i, r = divmod(tile, row_tiles)
        i0, (i1, i2) = i // 6, divmod(i % 6, 2)
        first = min(r * rows_per_tile, rows - rows_per_tile)
        arguments = (out, tile, rows, 3, 2, 2**40, 2**35, 2**33, stride)
        store_base[(1,)](*arguments, ROWS=rows_per_tile, OUTER=outer > 1)
        assert out.item() == i0 * 2**40 + i1 * 2**35 + i2 * 2**33 + first * stride


def test_more_axes_than_a_launch_takes(device: str) -> None:
    x = torch.randn(2, 3, 2, 3, 2, 3, 4).permute(6, 4, 2, 0, 1, 3, 5)
    torch.testing.assert_close(kernels.softmax(x.to(device), 3).cpu(), torch.softmax(x, 3))


def test_what_the_kernels_refuse(device: str) -> None:
    x = torch.randn(2, 3, device=device)
    with pytest.raises(TypeError, match="float64"):
        kernels.softmax(x.double(), -1)
    with pytest.raises(TypeError, match="int64"):
        kernels.softmax(x.long(), -1, torch.float32)
    with pytest.raises(IndexError, match="dim 2"):
        kernels.softmax(x, 2)
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3,\)"):
        kernels.softmax_backward(x, x[0], -1, torch.float32)
    assert "float64" in str(kernels.unsupported("softmax", torch.float64, torch.float64))
    assert "bool" in str(kernels.unsupported("softmax", torch.bool, torch.float32))
    assert all(kernels.unsupported("softmax", a, b) is None for a in DTYPES for b in DTYPES)
