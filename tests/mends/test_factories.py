"""torch.eye and Tensor.data inside of a jitted function."""

from __future__ import annotations

import pytest
import thunder
import torch

from tests.traces import jit
from thunder_npu import mends
from thunder_npu.mends import factories, mend

EYES = {
    "n": lambda x: torch.eye(3),
    "n_m": lambda x: torch.eye(3, 4),
    "m_smaller": lambda x: torch.eye(4, 2),
    "keywords": lambda x: torch.eye(n=2, m=3, dtype=torch.float64),
    "int64": lambda x: torch.eye(3, dtype=torch.int64),
    "bool": lambda x: torch.eye(3, dtype=torch.bool),
    "bfloat16": lambda x: torch.eye(3, dtype=torch.bfloat16, device=x.device),
    "empty": lambda x: torch.eye(0),
    "no_columns": lambda x: torch.eye(2, 0, dtype=torch.int32),
}


@pytest.mark.parametrize("name", EYES)
def test_eye_equals_eager(name):
    f = EYES[name]
    x = torch.randn(3, 3)
    torch.testing.assert_close(jit(f)(x), f(x), rtol=0, atol=0)


def test_eye_follows_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert jit(EYES["n"])(torch.randn(3, 3)).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_gradient_goes_past_eye():
    x = torch.randn(3, 3, requires_grad=True)
    jit(lambda x: (x @ torch.eye(3) * torch.eye(3)).sum())(x).backward()
    torch.testing.assert_close(x.grad, torch.eye(3), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(-1,), (2, -3), (2.5,)])
def test_eye_refuses_what_eager_refuses(size):
    with pytest.raises((RuntimeError, TypeError)) as eager:
        torch.eye(*size, device="meta")
    with pytest.raises(type(eager.value), match=r"eye|must be"):
        jit(lambda x: x + torch.eye(*size))(torch.randn(3, 3))


@pytest.mark.parametrize("options", [{"requires_grad": True}, {"pin_memory": True}, {"layout": torch.sparse_coo}])
def test_eye_names_the_option_it_does_not_take(options):
    with pytest.raises(NotImplementedError, match=next(iter(options))):
        jit(lambda x: x + torch.eye(3, **options))(torch.randn(3, 3))


def test_eye_belongs_to_the_executors():
    with pytest.raises(NotImplementedError, match=r"torch\.eye"):
        thunder.jit(EYES["n"])(torch.randn(3, 3))


def test_data_has_the_value_and_no_gradient():
    def f(x):
        y = x * 2
        return y.data * x, x.data

    x = torch.randn(3, 3, requires_grad=True)
    product, data = jit(f)(x)
    torch.testing.assert_close(product, f(x)[0], rtol=0, atol=0)
    torch.testing.assert_close(data, x.data, rtol=0, atol=0)
    assert not data.requires_grad
    product.sum().backward()
    torch.testing.assert_close(x.grad, x.data * 2, rtol=0, atol=0)


def test_the_gradient_that_nothing_reached_of_a_0d_tensor():
    matrix = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    x, want = (matrix.clone().requires_grad_() for _ in range(2))
    jit(lambda x: torch.linalg.slogdet(x)[1] * 1)(x).backward()  # no gradient comes for its sign
    (torch.linalg.slogdet(want)[1] * 1).backward()
    torch.testing.assert_close(x.grad, want.grad)


def test_the_mends_step_aside(monkeypatch):
    assert factories.EYE in mends.OWNED
    assert factories.DATA in mends.GLOBAL
    monkeypatch.setattr(mend, "LAST_TRIED", "0.0.1")
    assert not factories.EYE.needed()
    assert not factories.ZEROS.needed()
    monkeypatch.undo()
    monkeypatch.setitem(thunder.torch._torch_to_thunder_function_map, torch.eye, object())
    assert not factories.EYE.needed()
    assert not factories.DATA.needed(), "Thunder has the attribute, here by the mend"
