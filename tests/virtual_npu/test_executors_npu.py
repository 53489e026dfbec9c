"""The executors on npu tensors: which aclnn operators and Triton kernels ran, and that the values are CPU eager's."""

import math

import pytest
import thunder
import torch
import torch.nn.functional as F

import thunder_npu
from thunder_npu import virtual_npu

FAMILY = {"softmax": torch.softmax, "log_softmax": torch.log_softmax, "safe_softmax": torch._safe_softmax}
ACLNN = {"softmax": "aclnnSoftmax", "log_softmax": "aclnnLogSoftmax", "safe_softmax": "aclnnSoftmax"}
HALF = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


def jit(fn, **options):
    return thunder.jit(fn, executors=[thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex], **options)


def compare(fn, *inputs, tolerance=2e-6, **options):
    """Names of the operators and kernels that ran for ``fn`` on npu tensors, once its results equal CPU eager's."""
    host = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    want = fn(*host)
    cotangent = torch.randn(want.shape).to(want.dtype)
    want.backward(cotangent)
    npu = [t.detach().to("npu").requires_grad_(t.requires_grad) for t in inputs]
    there = cotangent.to("npu")
    jitted = jit(fn, **options)
    with virtual_npu.record() as calls:
        got = jitted(*npu)
        got.backward(there)
        torch.npu.synchronize()
    assert got.device.type == "npu"
    assert got.dtype == want.dtype
    close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    torch.testing.assert_close(got.cpu(), want, **close)
    for a, b in zip(npu, host, strict=True):
        if b.requires_grad:
            torch.testing.assert_close(a.grad.cpu(), b.grad, **close)
    return [call.name for call in calls], jitted


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("width", [1, 197, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_width_decides_between_aclnn_and_triton(op, width, dtype):
    x = (torch.randn(6, width) * 2).to(dtype).requires_grad_()
    ran, jitted = compare(lambda x: FAMILY[op](x, -1), x, tolerance=HALF.get(dtype, 2e-6))
    if op == "log_softmax" or width > 256:
        assert ACLNN[op] in ran
        assert f"{ACLNN[op]}Backward" in ran
        assert not [name for name in ran if not name.startswith("aclnn")]
    else:
        assert ran == ["softmax_tiles", "softmax_backward_tiles"]
    assert {row["path"] for row in thunder_npu.explain(jitted).rows} == {"device"}


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("width", [16, 300])
def test_a_cast_before_compute(op, width):
    x = torch.randn(4, width).bfloat16().requires_grad_()
    ran, _ = compare(lambda x: FAMILY[op](x, -1, dtype=torch.float32), x, tolerance=1e-2)
    assert ("softmax_tiles" in ran) is (op == "softmax" and width == 16)


def test_float64_is_left_to_thunder():
    x = torch.randn(4, 300, dtype=torch.float64, requires_grad=True)
    ran, jitted = compare(lambda x: torch.softmax(x, -1), x, tolerance=1e-12)
    assert "aclnnSoftmax" in ran
    assert "aclnnSoftmaxBackward" not in ran
    (row,) = thunder_npu.explain(jitted).rows
    assert row["executor"] == "torch"
    assert "float64" in row["reason"]


@pytest.mark.parametrize("width", [8, 400])
def test_fully_masked_rows(width):
    x = torch.randn(5, width)
    x[1] = -math.inf
    x[2, : width // 2] = -math.inf
    x[3, 0], x[3, 1:] = math.nan, -math.inf
    ran, _ = compare(lambda x: torch._safe_softmax(x, -1), x.requires_grad_())
    assert ("aclnnSoftmax" in ran) is (width == 400)


def test_rank_above_cann_limit():
    x = torch.randn(*(1,) * 8, 300, requires_grad=True)
    ran, _ = compare(lambda x: torch.softmax(x, -1), x)
    assert ran == ["softmax_tiles", "softmax_backward_tiles"]


def test_the_cross_entropy_of_a_training_step():
    logits, target = torch.randn(4, 1000, requires_grad=True), torch.tensor([1, -100, 0, 6])
    ran, _ = compare(lambda x, t: F.cross_entropy(x, t), logits, target)
    assert [name for name in ran if "Softmax" in name] == ["aclnnLogSoftmax", "aclnnLogSoftmaxBackward"]


def test_a_repeated_cat_is_an_expand_with_one_sum_behind_it():
    ran, _ = compare(lambda x: torch.cat((x, x), -1).cos(), torch.randn(3, 4, requires_grad=True))
    assert "aclnnCat" not in ran
    assert ran.count("aclnnReduceSum") == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_runs_the_softmax_in_float32(dtype):
    x, w = torch.randn(3, 8, device="npu"), torch.randn(8, 5, device="npu")

    def fn(x, w):
        return torch.softmax(x @ w, -1)

    with torch.autocast("npu", dtype):
        want, got = fn(x, w), jit(fn)(x, w)
    assert got.dtype == want.dtype == torch.float32
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-5, atol=1e-6)
