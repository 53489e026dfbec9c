"""Gradients equal eager PyTorch's, at special values too; what has no gradient in Thunder has one."""

from __future__ import annotations

import math

import pytest
import thunder
import torch
import torch.nn.functional as F

from tests.traces import EXECUTORS, backward_symbols, forward_symbols, jit, run
from thunder_npu import aclnn_ex
from thunder_npu.mends import gradients, mend

SPECIAL = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, 3, 6, -3, -6, 20, 21, 50, -50, 89, -89, 200, -200, 1e4, -1e4, 1e-8, 1e-20]
SPECIAL += [3e38, -3e38, math.inf, -math.inf, math.nan]
ELEMENTWISE = {
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "relu6": F.relu6,
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 0.5),
    "selu": F.selu,
    "mish": F.mish,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "softshrink": F.softshrink,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp min": lambda x: x.clamp(min=0.0),
    "clamp at a bound that rounds": lambda x: (x * 0.2).clamp(-0.1, 0.1),
    "clamp max": lambda x: torch.clamp(x, max=0.0),
    "x^0": lambda x: x**0.0,
    "x^2": lambda x: x**2,
    "x^0.5": lambda x: x**0.5,
    "x^-1": lambda x: x**-1.0,
    "0^x": lambda x: 0.0**x,
    "(-2)^x": lambda x: (-2.0) ** x,
    "x^(0x)": lambda x: x ** (x * 0),
    "focal": lambda x: (1 - x) ** 2.0 * x,
    "flip": lambda x: x.flip(0),
    "round": torch.round,
    "trunc": torch.trunc,
    "remainder": lambda x: torch.remainder(x, -0.75),
    "%": lambda x: x % 3,
    "minimum": lambda x: torch.minimum(x, -x),
    "maximum": lambda x: torch.maximum(x, -x),
    "lerp": lambda x: torch.lerp(x, 2 * x, 0.25),
    "isfinite": lambda x: torch.isfinite(x) * x,
}
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 1e-6},
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-3},
}


def both(fn, *tensors, executors=EXECUTORS, **tolerance):
    """Values and gradients of ``fn``, jitted and eager; returns the jitted function."""
    out = fn(*tensors)
    cotangent = (torch.rand(out.shape, generator=torch.Generator().manual_seed(0)) + 0.5).to(out.dtype)
    jitted = jit(fn, executors=executors)
    want = run(fn, *tensors, cotangent=cotangent)
    got = run(jitted, *tensors, cotangent=cotangent)
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    return jitted


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("fn", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise_at_special_values(fn, dtype):
    both(fn, torch.tensor(SPECIAL, dtype=torch.float64).to(dtype).requires_grad_(), **TOLERANCE[dtype])


TIES = torch.tensor([[1.0, 3, 3, 0], [2, 2, 2, 2], [-1, -5, -5, -1], [math.inf, 0, math.inf, 1]])
REDUCTIONS = {
    "max()": lambda x: x.max(),
    "max(dim)": lambda x: x.max(-1)[0],
    "max(0, keepdim)": lambda x: x.max(0, keepdim=True)[0],
    "min(dim)": lambda x: x.min(-1)[0],
    "min()": lambda x: x.min(),
    "amax": lambda x: x.amax(-1),
    "amax of two": lambda x: x.reshape(2, 2, 4).amax((0, 2), keepdim=True),
    "amin": lambda x: x.amin(),
    "prod": lambda x: (x[:3] - 4).prod(-1),
    "prod of zeros": lambda x: (x[:3] * (x[:3] > 0) + (x[:3] == 2)).prod(-1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fn", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reductions_of_ties(fn, dtype):
    both(fn, TIES.to(dtype).requires_grad_(), **TOLERANCE[dtype])


def test_the_maximum_of_a_nan_is_where_the_nan_is():
    both(lambda x: x.max(), torch.tensor([1.0, math.nan, 3, math.nan], requires_grad=True))


SCALARS = {
    "add": lambda x, s: x + s,
    "sub": lambda x, s: s - x,
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "pow": lambda x, s: x.abs() ** s,
    "where": lambda x, s: torch.where(x > 0, x, s),
    "minimum": lambda x, s: torch.minimum(x, s),
    "maximum": lambda x, s: torch.maximum(s, x),
    "its own sum": lambda x, s: x * x.sum() + s,
}


@pytest.mark.parametrize("fn", SCALARS.values(), ids=SCALARS)
def test_a_scalar_tensor_has_one_gradient(fn):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    both(fn, x, torch.tensor(0.5, requires_grad=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("executors", [EXECUTORS, EXECUTORS[:1], EXECUTORS[1:]], ids=["both", "aclnn", "triton"])
def test_the_rules_claim_nothing_and_leave_regions_whole(executors):
    def f(x):
        return torch.softmax(torch.tanh(x) * torch.sigmoid(x), -1)

    jitted = both(f, torch.randn(8, 16, requires_grad=True), executors=executors, rtol=1e-5, atol=1e-6)
    if len(executors) == 2 or executors[0] is not aclnn_ex:
        assert "TritonAscend0" in forward_symbols(jitted)
        assert any(name.startswith("TritonAscend") for name in backward_symbols(jitted))
    alone = jit(torch.sigmoid, executors=executors)
    alone(torch.randn(3, requires_grad=True)).sum().backward()
    assert not [b for b in thunder.last_traces(alone)[-1].bound_symbols if b.sym.executor in executors]


def test_without_our_executors_thunder_is_as_it_was():
    x = torch.tensor([-200.0], requires_grad=True)
    thunder.jit(torch.sigmoid, executors=["torch"])(x).sum().backward()
    assert x.grad.isnan().all()


def test_the_mend_steps_aside(monkeypatch):
    monkeypatch.setattr(mend, "LAST_TRIED", "0.0.1")
    assert not gradients.GRADIENTS.needed()


def test_modulo_of_integers():
    x = torch.tensor([7, -7, 5])
    for fn in (lambda x: x % 3, lambda x: x % -3, lambda x: 20 % x, lambda x: torch.fmod(x, 3), lambda x: x % x.abs()):
        torch.testing.assert_close(jit(fn)(x), fn(x), rtol=0, atol=0)
