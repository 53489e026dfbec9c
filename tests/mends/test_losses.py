"""cross_entropy, nll_loss and kl_div in training, in every reduction; torch.where of numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.mends.test_gradients import both
from tests.traces import backward_symbols, jit

TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2}}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [-100, 1])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3), (2, 5, 2, 3), (5,)], ids=str)
def test_cross_entropy(shape, ignore, weighted, smoothing, reduction, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else (), generator=generator)
    if target.ndim:
        target.view(-1)[0] = ignore
    weight = [(torch.rand(5, generator=generator) + 0.5).to(dtype)] if weighted else []

    def f(x, target, weight=None):
        return F.cross_entropy(x, target, weight, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing)

    jitted = both(f, x, target, *weight, **TOLERANCE[dtype])
    assert "torch_nll_loss_backward_impl" in backward_symbols(jitted)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_labels(smoothing, reduction, dtype):
    generator = torch.Generator().manual_seed(0)
    x, target = (torch.randn(6, 5, generator=generator).softmax(-1).to(dtype).requires_grad_() for _ in range(2))
    both(
        lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=smoothing),
        x,
        target,
        **TOLERANCE[dtype],
    )
    both(lambda x, t: F.kl_div(x.log(), t, reduction=reduction), x, target, **TOLERANCE[dtype])


def test_nll_loss_ignores_what_eager_ignores():
    x = torch.randn(4, 5).log_softmax(-1).requires_grad_()
    both(lambda x, t: F.nll_loss(x, t), x, torch.tensor([0, -100, 3, 1]), rtol=1e-5, atol=1e-6)
    both(lambda x, t: F.nll_loss(x, t, reduction="sum"), x, torch.tensor([0, 2, -100, 1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numbers", [(1.0, 0.0), (1, 0), (True, False), (1, 2.0), (0.0, float("-inf"))], ids=str)
def test_where_of_two_numbers(numbers):
    mask = torch.tensor([[True, False], [False, True]])
    want = torch.where(mask, *numbers)
    got = jit(lambda mask: torch.where(mask, *numbers))(mask)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    both(lambda mask, x: torch.where(mask, 1.0, 0.0) * x, mask, torch.randn(2, 2, requires_grad=True))
