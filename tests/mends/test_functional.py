"""A jitted function inside of torch.func: one error, which names what to do."""

from __future__ import annotations

import pytest
import torch

from tests.traces import jit


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacrev", "jacfwd"])
def test_torch_func_of_a_jitted_function(transform):
    jitted = jit(lambda x: torch.softmax(x, -1).sum())
    with pytest.raises(RuntimeError, match=r"called inside of torch\.func .*thunder\.core\.transforms\.grad"):
        getattr(torch.func, transform)(jitted)(torch.randn(4, 8))
    assert jitted(torch.zeros(4, 8)).item() == 4  # as before


def test_other_errors_are_left_alone():
    jitted = jit(lambda x: torch.linalg.eigvals(torch.softmax(x, -1)).real.no_such_method())
    with pytest.raises(Exception, match=r"no_such_method|eigvals") as caught:
        jitted(torch.randn(4, 4))
    assert "torch.func" not in str(caught.value)
