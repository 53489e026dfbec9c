"""Thunder's function transforms where a gradient is ours: rules have the signatures of their symbols."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import transforms

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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_grad_equals_eagers(name: str) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        out = FUNCTIONS[name](a)
        return out.sum() if name == "attention" else (out * out).sum()

    x = torch.randn(4, 8)
    leaf = x.clone().requires_grad_()
    f(leaf).backward()
    jitted = transforms.grad(thunder.jit(f, executors=EXECUTORS))
    (got,) = jitted(x)
    torch.testing.assert_close(got, leaf.grad)
    if "softmax" in name:
        text = str(thunder.last_traces(jitted)[-1])
        assert "softmax_backward" in text or name == "safe_softmax"


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
