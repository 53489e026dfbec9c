"""An output of a jitted function requires a gradient where eager PyTorch's does, and no other gets a gradient."""

from __future__ import annotations

import pytest
import torch

from tests.traces import jit
from thunder_npu.mends import mend, outputs


def _no_grad(x, y):
    with torch.no_grad():
        z = x * 3
    return z, z * x


CASES = {
    "detached": lambda x, y: ((x * 2), (x * 2).detach()),
    "detached_and_used": lambda x, y: (y.detach() * 2, x * 2, y.detach()),
    "detached_reaches_another": lambda x, y: (x.detach() * y, x.detach() + 1),
    "constant": lambda x, y: (x * 2, torch.ones(3), torch.zeros_like(x)),
    "integers_and_bools": lambda x, y: (x * y, x.argmax(-1), x > 0),
    "no_grad": _no_grad,
    "no_gradient_but_differentiable": lambda x, y: (x.sign(), y * 2),
    "an_input": lambda x, y: (x, x * y),
    "a_dict": lambda x, y: {"a": x.sum(), "b": x.detach().sum(), "c": None},
    "none_of_them": lambda x, y: (x.detach(), torch.ones(2)),
    "through_a_decomposition": lambda x, y: (torch.softmax(x.detach(), -1), torch.nn.functional.layer_norm(y, (4,))),
}


def _tensors(out):
    return [t for t in (out.values() if isinstance(out, dict) else out) if isinstance(t, torch.Tensor)]


def _run(f, requires):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(3, 4, generator=generator).requires_grad_(r) for r in requires]
    out = _tensors(f(*inputs))
    flags = [t.requires_grad for t in out]
    if any(flags):
        sum((t * (i + 1)).sum() for i, t in enumerate(out) if t.requires_grad).backward()
    return [t.detach() for t in out], flags, [t.grad for t in inputs]


@pytest.mark.parametrize("requires", [(True, True), (True, False), (False, True)], ids=["both", "first", "second"])
@pytest.mark.parametrize("name", CASES)
def test_flags_values_and_gradients_are_those_of_eager(name, requires):
    (values, flags, grads), (want, want_flags, want_grads) = (
        _run(f, requires) for f in (jit(CASES[name]), CASES[name])
    )
    assert flags == want_flags
    torch.testing.assert_close(values, want)
    for grad, want_grad in zip(grads, want_grads, strict=True):
        if want_grad is None:
            assert grad is None
        else:
            torch.testing.assert_close(grad, want_grad)


def test_the_mend_names_the_version(monkeypatch):
    assert outputs.OUTPUTS.needed()
    monkeypatch.setattr(mend, "LAST_TRIED", "0.0.1")
    assert not outputs.OUTPUTS.needed()
