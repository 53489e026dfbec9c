"""The attention of six models: one fused region between the two matmuls, in each direction, with eager's results."""

from __future__ import annotations

import pytest
import thunder
import torch

from tests.fusion import attention, regions
from thunder_npu.executors.fusion import is_region

pytestmark = pytest.mark.slow

# Symbols that compute nothing; they may stand beside a region, wherever the schedule puts them.
FREE = {
    "python_del", "unpack_trivial", "unpack_sequence", "clear_mutable_collection", "python_return", "permute",
    "transpose", "__getitem__", "unsqueeze", "expand", "shallow_copy",
}  # fmt: skip
# A causal mask is an input of the decoder, so TrOCR's backward has nothing beside the softmax's own to fuse.
ALONE = {"trocr"}


def symbols(trace) -> list[str]:
    return [b.sym.name for b in trace.bound_symbols if b.sym.name not in FREE]


def check_gaps(trace, softmax: str | None, allowed: set[str] = frozenset()) -> None:
    (gap,) = attention.between_products(symbols(trace))
    kernels = [name for name in gap if "TritonAscend" in name or "softmax" in name]
    assert len(kernels) == 1, gap
    assert kernels[0].startswith("TritonAscend") if softmax is None else kernels[0] == softmax
    inside = gap[: gap.index(kernels[0])]
    assert not [name for name in inside if name not in allowed], gap


@pytest.mark.parametrize("name", attention.MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_one_region_in_each_direction(name, training):
    torch.manual_seed(0)
    module, call, inputs = attention.MODELS[name](0.0)
    module.train(training)
    jitted = thunder.jit(module, executors=regions.EXECUTORS)
    x = inputs[0].requires_grad_(training)
    with torch.set_grad_enabled(training):
        got, want = call(jitted, x, *inputs[1:]), call(module, x, *inputs[1:])
    torch.testing.assert_close(got, want)
    forward = thunder.last_traces(jitted)[-1]
    # T5 makes its position bias, for all layers, between the products of its first layer.
    bias = {
        "abs", "add", "arange", "copy_", "embedding", "full", "full_like", "gt", "log", "lt", "min", "minimum", "mul",
        "neg", "sub", "to", "torch_div_prim_impl", "true_divide", "update_aliases", "where", "zeros_like",
    }  # fmt: skip
    check_gaps(forward, None, bias if name == "t5" else set())
    if training:
        grad = torch.randn_like(got)
        torch.testing.assert_close(torch.autograd.grad(got, x, grad), torch.autograd.grad(want, x, grad))
        backward = thunder.last_backward_traces(jitted)[-1]
        check_gaps(backward, "triton_ascend_softmax_backward" if name in ALONE else None)
        assert not any("BACKWARD" in str(b.tags) for b in forward.bound_symbols if is_region(b))


@pytest.mark.parametrize("name", attention.MODELS)
def test_dropout_masks_are_thunders_and_what_uses_them_is_fused(name):
    torch.manual_seed(0)
    module, call, inputs = attention.MODELS[name](0.25)
    module.train()
    jitted = thunder.jit(module, executors=regions.EXECUTORS)
    x = inputs[0].requires_grad_()
    got = call(jitted, x, *inputs[1:])
    got.sum().backward()
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    (region,) = [b for b in forward.bound_symbols if is_region(b)]
    masks = [
        b.output.name
        for b in forward.bound_symbols
        if b.sym.name == "lt" and b.flat_proxy_args[0].name in drawn(forward)
    ]
    assert len(masks) == 1
    assert masks[0] in {p.name for p in region.flat_proxy_args}, "the mask is read by the region"
    (back,) = [b for b in backward.bound_symbols if is_region(b)]
    assert masks[0] in {p.name for p in back.flat_proxy_args}, "the backward reads the same mask"
    for b in (*region.subsymbols, *back.subsymbols, *backward.bound_symbols):
        assert b.sym.name not in ("uniform", "uniform_philox"), "random numbers are drawn once"


def drawn(trace) -> set[str]:
    return {b.output.name for b in trace.bound_symbols if b.sym.name in ("uniform", "uniform_philox")}


@pytest.mark.parametrize("name", attention.MODELS)
def test_kernels_compile_for_both_socs_and_equal_the_reference(name, ascend):
    torch.manual_seed(0)
    dtype = torch.bfloat16
    module, call, inputs = attention.MODELS[name](0.0)
    module.train().to(dtype)
    lowest = torch.finfo(dtype).min
    inputs = tuple(t.to(dtype).clamp(min=lowest) for t in inputs)
    jitted = thunder.jit(module, executors=regions.EXECUTORS)
    x = inputs[0].requires_grad_()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        out = call(jitted, x, *inputs[1:])
        return out, torch.autograd.grad(out, x, torch.ones_like(out))[0]

    want = run()
    count = regions.use_kernels(jitted)
    assert count == 2 or name in ALONE
    for soc in ("Ascend910B2", "Ascend950PR_9599"):
        with ascend(soc) as reports:
            got = run()
        torch.testing.assert_close(got, want, rtol=2**-6, atol=2**-6)
        compiled = reports()
        assert len(compiled) >= count
        assert all(report.fits and not report.retries for report in compiled), compiled
