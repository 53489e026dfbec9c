"""What the tests ask of a trace: which symbols ran, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder
import torch

import thunder_npu

EXECUTORS = (thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex)


def jit(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """thunder.jit with both executors."""
    return thunder.jit(fn, executors=options.pop("executors", EXECUTORS), **options)


def forward_symbols(jitted: Callable[..., Any]) -> list[str]:
    """Names of the symbols of the final forward trace, in order; a fused region is followed by what it holds."""
    return _names(thunder.last_traces(jitted)[-1])


def backward_symbols(jitted: Callable[..., Any]) -> list[str]:
    """Names of the symbols of the final backward trace, in order; a fused region is followed by what it holds."""
    return _names(thunder.last_backward_traces(jitted)[-1])


def _names(trace: Any) -> list[str]:
    return [
        symbol.sym.name
        for bsym in trace.bound_symbols
        for symbol in (bsym, *(bsym.subsymbols if bsym.sym.is_fusion else ()))
    ]


def run(fn: Callable[..., Any], *tensors: torch.Tensor, cotangent: torch.Tensor | None = None) -> tuple[Any, list[Any]]:
    """Output of ``fn`` on fresh copies of ``tensors`` (strides kept) and the gradients of those that require one."""
    copies = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.requires_grad) for t in tensors]
    out = fn(*copies)
    if out.requires_grad:
        out.backward(torch.ones_like(out) if cotangent is None else cotangent)
    return out, [t.grad for t in copies if t.requires_grad]


def assert_same(got: Any, want: Any, **tolerance: float) -> None:
    """Equal values (NaN equals NaN), dtypes, shapes; exactly, unless a tolerance is given."""
    torch.testing.assert_close(got, want, equal_nan=True, **(tolerance or {"rtol": 0, "atol": 0}))
