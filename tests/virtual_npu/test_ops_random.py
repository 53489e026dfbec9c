"""Random operators, dropout, gradient scaling and fused AdamW."""

from __future__ import annotations

import pytest
import torch
from operator_table_random import OPERATORS, _gen_mask

from thunder_npu import virtual_npu


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operator(name: str) -> None:
    expression, check = OPERATORS[name]
    draws = []
    for seed in (1, 1, 2):
        torch.npu.manual_seed(seed)
        with virtual_npu.record() as calls:
            draws.append(expression().cpu())
        assert name in calls.names, sorted(set(calls.names))
        assert check(draws[-1]), draws[-1]
    assert torch.equal(draws[0], draws[1])  # the same seed


def test_numbers_go_on_from_call_to_call_and_come_back_with_the_state() -> None:
    torch.npu.manual_seed(3)
    state = torch.npu.get_rng_state()
    first, second = torch.randn(8, device="npu"), torch.randn(8, device="npu")
    assert not torch.equal(first, second)
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(8, device="npu"), first)


def test_dropout_mask_is_bits_lowest_first() -> None:
    bits = _gen_mask()
    assert abs(bits.double().mean() - 0.75) < 0.06
    x = torch.ones(1000, device="npu")
    mask = torch.ops.npu._npu_dropout_gen_mask(x, [1000], 0.25, 7, 0)
    assert mask.numel() == 128  # 1000 bits, padded to 1024
    kept = torch.ops.npu.npu_dropout_backward(x, mask, 0.25)
    assert torch.equal(kept.cpu() != 0, bits.bool())


def test_attention_drops_probabilities_and_their_gradient_alike() -> None:
    """With the identity for values, the output is the probabilities after dropout."""
    q, k = torch.randn(2, 4, 16, 16, device="npu"), torch.randn(2, 4, 16, 16, device="npu")
    v = torch.eye(16, device="npu").expand(2, 4, 16, 16).contiguous().requires_grad_()
    dropped = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    probabilities = torch.nn.functional.scaled_dot_product_attention(q, k, v.detach())
    ratio = (dropped.detach() / probabilities).cpu()
    kept = ratio > 0.5
    torch.testing.assert_close(ratio, kept * torch.tensor(4 / 3))
    assert abs(kept.double().mean() - 0.75) < 0.05
    (gradient,) = torch.autograd.grad(dropped.sum(), v)  # d/dv[j, c] = the sum over i of p[i, j]
    torch.testing.assert_close(gradient[..., 0].cpu(), dropped.detach().sum(-2).cpu())


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_at_the_ends(p: float) -> None:
    x = torch.ones(64, device="npu", requires_grad=True)
    y = torch.nn.functional.dropout(x, p)
    y.sum().backward()
    assert y.cpu().eq(1 - p).all()
    assert x.grad.cpu().eq(1 - p).all()
