"""Thunder's function transforms where a gradient is ours: rules have the signatures of their symbols."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import transforms

from tests.traces import forward_symbols
from thunder_npu import aclnn_ex, explain, triton_ascend_ex
from thunder_npu.executors.softmax_family import SYMBOLS

EXECUTORS = [aclnn_ex, triton_ascend_ex]
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda a: torch.softmax(a, -1),
    "softmax of a dtype": lambda a: torch.softmax(a, dim=0, dtype=torch.float64),
    "log_softmax": lambda a: F.log_softmax(a, -1),
    "safe_softmax": lambda a: torch._safe_softmax(a, -1),
    "cross_entropy": lambda a: F.cross_entropy(a, torch.zeros(4, dtype=torch.long, device=a.device)),
    "attention": lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]),
    "repeat": lambda a: torch.cat([a, a], -1),
}
# Ours are to run the gradient: rows of 8 in Triton, log_softmax in aclnn; a repeat has none.
BACKWARD = {
    **{name: {"triton_ascend_softmax_backward"} for name in ("softmax", "softmax of a dtype", "attention")},
    "log_softmax": {"aclnn_log_softmax_backward"},
    "cross_entropy": {"aclnn_log_softmax_backward"},
    "safe_softmax": {"triton_ascend_safe_softmax_backward"},
    "repeat": set(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_grad_equals_eagers(name: str) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        out = FUNCTIONS[name](a)
        return (out * out).sum()

    x = torch.randn(4, 8)
    leaf = x.clone().requires_grad_()
    f(leaf).backward()
    jitted = transforms.grad(thunder.jit(f, executors=EXECUTORS))
    (got,) = jitted(x)
    torch.testing.assert_close(got, leaf.grad)
    ours = {s for s in forward_symbols(jitted) if s.endswith("softmax_backward")}
    assert ours == BACKWARD[name]


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda ex: str(ex.name))
@pytest.mark.parametrize("op", SYMBOLS)
def test_a_gradient_rule_has_the_signature_of_its_symbol(executor: object, op: str) -> None:
    rule = executor.implmap[SYMBOLS[op].id].grad_transform  # type: ignore[attr-defined]
    wanted = inspect.signature(SYMBOLS[op].meta).parameters
    got = inspect.signature(rule).parameters
    assert [(p.name, p.kind) for p in got.values()] == [(p.name, p.kind) for p in wanted.values()]


def test_the_report_of_a_function_without_a_cache() -> None:
    jitted = thunder.jit(lambda a: torch.softmax(a, -1), executors=EXECUTORS, cache="no caching")
    jitted(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert {(row["trace"], row["op"]) for row in explain(jitted).rows} == {
        ("forward", "softmax"),
        ("backward", "softmax_backward"),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "_safe_softmax"])
def test_a_gradient_twice(name, dtype):
    """Thunder's grad of its grad equals autograd's, for rows with a dead one where the guard makes it zero."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)

    def f(x, w):
        return (getattr(torch, name)(x, -1) * w * w).sum()

    leaves = [t.clone().requires_grad_() for t in (x, w)]
    first = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
    want = torch.autograd.grad(sum(g.sum() for g in first), leaves)
    jitted = transforms.grad(transforms.grad(thunder.jit(f, executors=EXECUTORS)))
    got = jitted(x.to(dtype), w.to(dtype))
    assert len(got) == 2
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e.to(dtype), rtol=1e-12 if dtype == torch.float64 else 1e-3, atol=1e-5)
    assert f"_{name.removeprefix('_')}_backward" in str(thunder.last_traces(jitted)[-1])
