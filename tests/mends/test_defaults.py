"""Tensors as default arguments are inputs like others: read at every call, with a gradient."""

from __future__ import annotations

import torch
from torch import nn

from tests.traces import jit

MASK = torch.tensor([0.0, 1.0, -1.0, 2.0])


def test_positional_and_by_name():
    scale = torch.full((4,), 3.0, requires_grad=True)

    def f(x, mask=MASK, *, scale=scale):
        return torch.softmax(x * scale + mask, -1)

    jitted = jit(f)
    x = torch.randn(2, 4)
    torch.testing.assert_close(jitted(x), f(x))
    torch.testing.assert_close(jitted(x, MASK * 2), f(x, MASK * 2))
    torch.testing.assert_close(jitted(x, scale=MASK), f(x, scale=MASK))
    jitted(x).pow(2).sum().backward()
    (want,) = torch.autograd.grad(f(x).pow(2).sum(), scale)
    torch.testing.assert_close(scale.grad, want)


def test_a_default_is_read_at_every_call():
    mask = MASK.clone()

    def f(x, mask=mask):
        return torch.softmax(x + mask, -1)

    jitted = jit(f)
    x = torch.randn(2, 4)
    jitted(x)
    mask += torch.arange(4.0)
    torch.testing.assert_close(jitted(x), f(x))


def test_in_a_module_and_in_a_function_it_calls():
    def inner(x, mask=MASK):
        return x + mask

    class Module(nn.Module):
        def forward(self, x, mask=MASK, other=None, n=2):
            return torch.softmax(inner(x) * n + mask, -1)

    module = Module()
    x = torch.randn(2, 4)
    torch.testing.assert_close(jit(module)(x), module(x))
