"""What the CUDA variant of a region's source promises, as far as it shows without a GPU. Ascend has none of it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
import torch

import thunder_npu
from tests.fusion import regions
from thunder_npu.kernels import codegen
from thunder_npu.kernels.plan import Target
from thunder_npu.kernels.region import Region
from thunder_npu.kernels.region_kernel import DEFAULT_TARGET

H200 = Target("cuda", "NVIDIA H200", 132)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def capped(scores, mask):
    scores = torch.tanh(scores * 0.0625 / 50.0) * 50.0 + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


def causal(scores, mask):
    i = torch.arange(scores.shape[-1])
    return torch.log_softmax(torch.where(i[:, None] >= i[None, :], scores * 0.3, float("-inf")), -1) + mask


def regions_of(function, dtype: torch.dtype, width: int, mask_shape: Sequence[int]) -> list[Region]:
    scores = torch.randn(3, 2, width, width, dtype=dtype, requires_grad=True)
    jitted = regions.jit(function, executors=[thunder_npu.triton_ascend_ex])  # aclnn would take the log_softmax
    jitted(scores, torch.zeros(mask_shape, dtype=dtype))
    found = regions.forward_regions(jitted) + regions.backward_regions(jitted)
    assert found
    return [r.lowered.region for r in found]


def prepared(region: Region, target: Target, gap: int = 0) -> codegen.Launch:
    """A launch for inputs whose rows lie `gap` elements apart."""
    strides = [codegen.contiguous((*t.shape[:-1], t.shape[-1] + gap)) for t in region.inputs]
    launch = codegen.prepare(region, strides, target)
    assert launch is not None
    return launch


def kernel_of(text: str) -> ast.FunctionDef:
    return next(f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name == codegen.KERNEL)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [capped, causal])
def test_a_launch_gives_a_number_for_every_parameter(function, dtype):
    for width, shape in ((16, (3, 1, 1, 16)), (19, (3, 1, 19, 19))):
        for region in regions_of(function, dtype, width, shape):
            for gap in (0, 5):
                for target in (H200, DEFAULT_TARGET):
                    launch = prepared(region, target, gap)
                    names = [a.arg for a in kernel_of(launch.text).args.args]
                    tensors = len(region.inputs) + len(region.outputs)
                    assert names[tensors:-2] == list(dict.fromkeys(names[tensors:-2]))
                    assert len(names) == tensors + len(launch.sizes) + len(launch.strides) + 2
                    assert names[-2:] == ["ROWS", "BLOCK"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_name_is_made_before_it_is_read(dtype):
    """Loads move to the top, widened values are left out, helpers call helpers."""
    for region in regions_of(capped, dtype, 19, (3, 1, 19, 19)) + regions_of(causal, dtype, 16, (1, 1, 16, 16)):
        tree = ast.parse(prepared(region, H200).text)
        known = {"tl", "triton", "float"}
        for function in tree.body:
            if not isinstance(function, ast.FunctionDef):
                continue
            inside = known | {a.arg for a in function.args.args}
            for statement in function.body:
                read = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
                assert read <= inside, (function.name, read - inside)
                inside |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            known.add(function.name)


def test_loads_come_first_and_tensors_alike_share_their_strides():
    (region,) = [r for r in regions_of(capped, torch.bfloat16, 16, (3, 1, 16, 16)) if len(r.inputs) == 2][:1]
    body = [ast.unparse(s) for s in kernel_of(prepared(region, H200).text).body]
    loads = [i for i, line in enumerate(body) if "tl.load" in line]
    assert loads == list(range(loads[0], loads[0] + len(region.inputs)))
    assert not any(word in line for line in body[: loads[0]] for word in ("tl.exp", "tanh", "widen", "to_bfloat16"))
    assert "out0_row" not in prepared(region, H200).text, "the result lies as the scores do"
    assert "out0_row" in prepared(region, H200, gap=3).text, "the scores' rows lie apart"


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_a_result_rounded_to_a_half_type_takes_the_flushing_exponential(dtype):
    def plain(scores, mask):
        return torch.softmax(scores * 0.3 + mask, -1)

    for function in (plain, capped):
        forward, *_ = regions_of(function, dtype, 16, (3, 1, 1, 16))
        text = prepared(forward, H200).text
        written = {t.dtype for _, t in forward.outputs}
        assert ("exp_scaled" in text) is (torch.float32 not in written)
        assert ("= tl.exp(" in text) is (torch.float32 in written)


def test_nothing_of_cuda_is_in_the_ascend_text():
    for dtype in DTYPES:
        for region in regions_of(capped, dtype, 19, (3, 1, 1, 19)):
            text = prepared(region, DEFAULT_TARGET).text
            assert not any(
                w in text for w in ("asm", "widen", "exp_scaled", "reciprocal", "tl.fma", "_row: tl.constexpr")
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_short_tanh_serves_half_types_alone(dtype):
    """In the backward too, where 1 - t·t reads a float32 tanh: of a half-type operand its error does not show."""
    short = dtype != torch.float32
    for region in regions_of(capped, dtype, 16, (3, 1, 1, 16)):
        calls = [n.func.id for n in ast.walk(kernel_of(prepared(region, H200).text)) if isinstance(n, ast.Call)
                 and isinstance(n.func, ast.Name)]  # fmt: skip
        assert ("tanh_rounded" in calls, "tanh" in calls) == (short, not short)


def test_a_float32_result_has_the_whole_tanh():
    """1 - t·t of half-type scores, but handed out in float32."""

    def function(scores):
        t = torch.tanh(scores.float())
        return torch.softmax(scores * 0.5, -1).float() * (1.0 - t * t)

    scores = torch.randn(3, 16, 16, dtype=torch.bfloat16)
    jitted = regions.jit(function)
    jitted(scores)
    (region,) = regions.forward_regions(jitted)
    text = prepared(region.lowered.region, H200).text
    assert "def tanh(x)" in text
    assert "tanh_rounded" not in text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("factor", "rounded"), [(0.5, 1), (0.3, 2)])
def test_half_types_compute_as_they_are_where_that_rounds_alike(dtype, factor, rounded):
    """A product with a number that the half type holds, and a sum of its values, need no float32 between."""
    forward, *_ = regions_of(lambda s, m: torch.softmax(s * factor + m, -1), dtype, 16, (3, 1, 1, 16))
    assert ast.unparse(kernel_of(prepared(forward, H200).text)).count(f"to_{str(dtype)[6:]}(") == rounded


@pytest.mark.parametrize(("height", "together"), [(4096, False), (4097, True)])
def test_tiles_that_share_a_large_tensor_run_together(height, together):
    """From 4 MiB on a mask that repeats over an outer axis would leave the cache before it is read again."""
    scores, mask = torch.randn(2, height, 256), torch.randn(height, 256)
    jitted = regions.jit(lambda s, m: torch.softmax(s + m, -1), executors=[thunder_npu.triton_ascend_ex])
    jitted(scores, mask)
    (region,) = regions.forward_regions(jitted)
    for target in (H200, DEFAULT_TARGET):
        assert ("block = tile % blocks" in prepared(region.lowered.region, target).text) is together


# ---- values ----------------------------------------------------------------------------------------------------------
# What the GPU's instructions compute, in Triton's own words.
INSTRUCTIONS = {
    "reciprocal": "1.0 / x",
    "power": "tl.exp2(x)",
    "to_bfloat16": "x.to(tl.bfloat16)",
    "to_float16": "x.to(tl.float16)",
    "widen": "x.to(tl.float32)",
}


def without_instructions(text: str) -> str:
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and "asm" in ast.unparse(function):
            function.body = ast.parse(f"return {INSTRUCTIONS[function.name]}").body
    return ast.unparse(tree)


class OnCPU:
    """Stands in for a region's kernel: the source for a GPU, run by triton-ascend's front end on CPU tensors."""

    def __init__(self, region: Region) -> None:
        self.region = region

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        launch = codegen.prepare(self.region, [t.stride() for t in inputs], H200)
        assert launch is not None
        outputs = [torch.empty(t.shape, dtype=t.dtype) for _, t in self.region.outputs]
        text = without_instructions(launch.text)
        names = [a.arg for a in kernel_of(text).args.args]
        given = dict(zip(names, (*inputs, *outputs, *launch.sizes, *launch.strides), strict=False))
        constants = {a.arg: given.pop(a.arg) for a in kernel_of(text).args.args if a.annotation and a.arg in given}
        plan = launch.plan
        regions._Interpreted(text)[(plan.grid,)](*given.values(), **constants, ROWS=plan.rows, BLOCK=plan.block)
        return outputs


def scaled(scores, mask):
    return torch.softmax(scores / 3.0 + mask, -1) * 2.0


def saturated(scores, mask):
    return torch.softmax(torch.tanh(scores) * 3.0 + mask, -1)


def column(scores, mask):
    return torch.softmax(scores * (scores * 0.5).amax(-1, keepdim=True) - mask, -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [capped, saturated, causal, scaled, column])
@pytest.mark.parametrize(("width", "mask_shape"), [(16, (3, 1, 1, 16)), (19, (3, 1, 19, 19)), (16, (1, 2, 16, 1))])
def test_values_and_gradients_of_the_gpu_source(function, dtype, width, mask_shape, ascend):
    torch.manual_seed(0)
    scores = (torch.randn(3, 2, width, width) * 2).to(dtype).requires_grad_()
    mask = torch.randn(mask_shape).to(dtype)
    jitted = regions.jit(function, executors=[thunder_npu.triton_ascend_ex])
    jitted(scores, mask)
    assert regions.use_kernels(jitted) == 2
    for region in regions.forward_regions(jitted) + regions.backward_regions(jitted):
        region.kernel = OnCPU(region.lowered.region)
    want = function(scores, mask)
    cotangent = torch.randn_like(want)
    with ascend():
        got = jitted(scores, mask)
        (gradient,) = torch.autograd.grad(got, scores, cotangent)
    tolerance = {torch.float32: 2e-6, torch.float16: 2**-8, torch.bfloat16: 2**-5}[dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient, *torch.autograd.grad(want, scores, cotangent), rtol=tolerance, atol=tolerance)
