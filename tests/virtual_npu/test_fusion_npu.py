"""Fused regions on npu tensors of the virtual NPU: launched as Triton kernels, with eager's results."""

from __future__ import annotations

import pytest
import thunder
import torch

import thunder_npu
from tests.fusion import attention, regions
from thunder_npu import virtual_npu


def launches(calls) -> list[str]:
    return [call.kernel for call in calls if hasattr(call, "kernel")]


@pytest.mark.parametrize("name", attention.MODELS)
def test_attention_trains_with_one_launch_in_each_direction(name):
    torch.manual_seed(0)
    module, call, inputs = attention.MODELS[name](0.0)
    module.train()
    cpu = inputs[0].clone().requires_grad_()
    want = call(module, cpu, *inputs[1:])
    grad = torch.randn_like(want)
    (want_grad,) = torch.autograd.grad(want, cpu, grad)
    module.to("npu")
    x = inputs[0].detach().to("npu").requires_grad_()
    rest = [t.to("npu") for t in inputs[1:]]
    jitted = thunder.jit(module, executors=regions.EXECUTORS)
    with virtual_npu.record() as calls:
        got = call(jitted, x, *rest)
        (got_grad,) = torch.autograd.grad(got, x, grad.to("npu"))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got_grad.cpu(), want_grad, rtol=1e-4, atol=1e-5)
    backward = "softmax_backward_tiles" if name == "trocr" else "fused_rows"  # a softmax with nothing around it
    assert launches(calls) == ["fused_rows", backward]
    assert all(region.on_device for region in regions.forward_regions(jitted))


def test_dropout_is_drawn_on_the_device_and_fused():
    def function(x):
        return torch.nn.functional.dropout(torch.softmax(x * 0.5, -1), 0.5)

    jitted = regions.jit(function)
    x = torch.randn(6, 33, device="npu", requires_grad=True)
    with virtual_npu.record() as calls:
        out = jitted(x)
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert launches(calls) == ["fused_rows"] * 2
    p = torch.softmax(x.detach().cpu() * 0.5, -1)
    kept = out.detach().cpu() != 0
    assert 50 <= kept.sum() <= 148, "198 draws at 0.5, seven standard deviations"
    torch.testing.assert_close(out.detach().cpu(), torch.where(kept, 2.0 * p, 0.0), rtol=1e-5, atol=1e-6)
    weighted = torch.where(kept, 2.0, 0.0)
    expected = 0.5 * p * (weighted - (weighted * p).sum(-1, keepdim=True))
    torch.testing.assert_close(gradient.cpu(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "t5", "gemma2"])
def test_a_float32_softmax_of_half_type_scores_is_computed_again(name, dtype):
    """In the backward's launch: no aclnn softmax runs, and nothing of float32 as large as the scores is kept."""
    torch.manual_seed(0)
    module, call, inputs = attention.MODELS[name](0.0)
    module.train().to("npu", dtype)
    x, *rest = (t.clamp(min=torch.finfo(dtype).min).to("npu", dtype) for t in inputs)
    x.requires_grad_()
    want = call(module, x, *rest)
    grad = torch.randn_like(want)
    (want_grad,) = torch.autograd.grad(want, x, grad)
    jitted = thunder.jit(module, executors=regions.EXECUTORS)
    with virtual_npu.record() as calls:
        got = call(jitted, x, *rest)
        (got_grad,) = torch.autograd.grad(got, x, grad)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for ours, eager in ((got, want), (got_grad, want_grad)):
        assert (ours - eager).float().norm() <= tolerance * eager.float().norm()
    assert launches(calls) == ["fused_rows"] * 2
    assert not [call for call in calls if "oftmax" in getattr(call, "name", "")]
    (backward,) = regions.backward_regions(jitted)
    assert "softmax" in [node.op for node in backward.lowered.region.nodes]
    assert torch.float32 not in {t.dtype for t in backward.lowered.region.inputs}


def test_wide_rows_stay_with_aclnn_and_break_a_region():
    jitted = thunder.jit(lambda x: torch.softmax(x * 0.5, -1) * 2.0, executors=regions.EXECUTORS)
    x = torch.randn(3, 300, device="npu")
    with virtual_npu.record() as calls:
        out = jitted(x)
    torch.testing.assert_close(out.cpu(), torch.softmax(x.cpu() * 0.5, -1) * 2.0)
    assert not launches(calls)


def test_a_kernel_that_does_not_compile_is_an_error_that_names_the_region():
    from thunder_npu.virtual_npu.triton_cpu.driver import overflowing

    jitted = thunder.jit(lambda x: torch.softmax(x * 0.25, -1) * 3.0, executors=regions.EXECUTORS)
    with (
        overflowing("fused_rows"),
        pytest.raises(
            thunder_npu.kernels.KernelCompileError,
            match=r"^TritonAscend0: the kernel .* for 3 rows of 17 elements did not compile",
        ),
    ):
        jitted(torch.randn(3, 17, device="npu"))
