"""copy.deepcopy and pickle of a jitted module: the copy computes the same, shares nothing, compiles for itself."""

from __future__ import annotations

import copy
import pickle

import pytest
import thunder
import torch
from torch import nn

from tests.traces import backward_symbols, forward_symbols, jit


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.BatchNorm1d(4))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_copy_computes_the_same_and_shares_nothing(copied, calls):
    jitted = jit(model(), softmax_aclnn_max_fuse_numel=2)
    x = torch.randn(3, 4)
    for _ in range(calls):
        jitted(x).sum().backward()
    other = copied(jitted)
    assert isinstance(other, thunder.core.module.ThunderModule)
    assert other.state_dict().keys() == jitted.state_dict().keys()
    for name, mine in jitted.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], mine, rtol=0, atol=0)
    assert not {p.data_ptr() for p in jitted.parameters()} & {p.data_ptr() for p in other.parameters()}
    want = jitted(x)
    torch.testing.assert_close(other(x), want, rtol=0, atol=0)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    torch.testing.assert_close(jitted(x).detach(), want.detach(), rtol=0, atol=0)
    assert torch.equal(other(x), torch.zeros(3, 4))
    # Jitted as the original was: the option sends rows of 4 to aclnn.
    other(x).sum().backward()
    assert "aclnn_softmax" in forward_symbols(other)
    assert "aclnn_softmax_backward" in backward_symbols(other)
    assert thunder.cache_misses(other) == 1


def test_a_copy_of_a_tied_weight_is_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return torch.softmax(self.b(self.a(x)), -1)

    other = copy.deepcopy(jit(Tied()))
    assert other._model.a.weight is other._model.b.weight


def test_a_jitted_module_inside_of_a_module_is_copied_with_it():
    outer = nn.ModuleDict({"inner": jit(model()), "head": nn.Linear(4, 2)})
    other = copy.deepcopy(outer)
    x = torch.randn(3, 4)
    torch.testing.assert_close(other["head"](other["inner"](x)), outer["head"](outer["inner"](x)), rtol=0, atol=0)
