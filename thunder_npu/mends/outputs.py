"""Which outputs of a jitted function require a gradient.

Thunder 0.2.6 hands every floating point output to autograd once one input requires a gradient: ``torch.ones(3)``, what
comes of inputs that require none, and ``detach()`` all come out with ``requires_grad``, and a backward through them
gives their inputs gradients of zeros where eager PyTorch gives none. Here an output requires a gradient where a
differentiable path leads to it from an input that requires one; the others are kept from autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Any

from thunder.core import prims
from thunder.core.compile_data import get_compile_data
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.extend import Executor
from thunder.transforms import autodiff

from thunder_npu.mends.mend import Mend

_KEY = "differentiable"
"""Where the return of a joint trace carries a bool for each of its outputs."""


def _leaves(bsyms: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    for bsym in bsyms:
        if bsym.sym.name == "detach":
            for out in bsym.flat_proxy_outs:
                out.tags.add(ProxyTag.DETACHED_AUTOGRAD_GRAPH)
        if bsym.subsymbols and not _detached(bsym) and not _has_gradient(bsym):
            yield from _leaves(bsym.subsymbols)
        yield bsym  # after its parts, for outputs that none of them names


def _detached(bsym: BoundSymbol) -> bool:
    return any(ProxyTag.DETACHED_AUTOGRAD_GRAPH in out.tags for out in bsym.flat_proxy_outs)


def _has_gradient(bsym: BoundSymbol) -> bool:
    """Whether the gradient of ``bsym`` is one rule rather than those of its parts."""
    return autodiff._get_gradfn_and_executor(bsym)[0] is not None or bsym.sym.id in autodiff.augmented_forward_impls


def _differentiable(trace: TraceCtx) -> tuple[bool, ...]:
    """For each output of ``trace`` whether a gradient goes from it to an input; tags what ``detach`` returns."""
    *body, end = trace.bound_symbols
    requires = {p.name for p in end.args[0]["flat_args"] if isinstance(p, TensorProxy) and p.requires_grad}
    known = {p.name for p in end.args[0]["flat_args"] if isinstance(p, TensorProxy)}
    for bsym in _leaves(body):
        reached = not _detached(bsym) and any(p.name in requires for p in bsym.flat_proxy_args)
        for out in bsym.flat_proxy_outs:
            # A part has already said so of an output that it shares with the whole.
            if isinstance(out, TensorProxy) and out.name not in known:
                known.add(out.name)
                if reached and is_inexact_dtype(out.dtype):
                    requires.add(out.name)
    return tuple(isinstance(p, TensorProxy) and p.name in requires for p in end.args[0]["output"])


def _apply(executor: Executor | None) -> None:
    transform, split = autodiff.grad_transform_on_trace, autodiff.split_into_forward_and_backward
    if getattr(transform, "knows_differentiable_outputs", False):
        return

    @wraps(transform)
    def grad_transform_on_trace(trace: TraceCtx, /, *args: Any, **kwargs: Any) -> TraceCtx:
        end = trace.bound_symbols[-1]
        data = get_compile_data()
        told = data is not None and data.compile_options.get("is_differentiable_outputs") is not None
        if told or end.sym is not prims.python_return or not isinstance(end.args[0], dict):
            return transform(trace, *args, **kwargs)
        end.args[0][_KEY] = _differentiable(trace)
        try:
            return transform(trace, *args, **kwargs)
        finally:
            del end.args[0][_KEY]

    @wraps(split)
    def split_into_forward_and_backward(joint: TraceCtx) -> tuple[TraceCtx, TraceCtx | None]:
        differentiable = joint.bound_symbols[-1].args[0].pop(_KEY, None)
        forward, backward = split(joint)
        if differentiable is not None and backward is not None:
            returned = forward.bound_symbols[-1].args[0]
            # What is not among the flat outputs never meets autograd; the user's outputs stand under "output".
            returned["flat_output"] = tuple(
                p if required else None for p, required in zip(returned["flat_output"], differentiable, strict=True)
            )
        return forward, backward

    grad_transform_on_trace.knows_differentiable_outputs = True  # type: ignore[attr-defined]
    autodiff.grad_transform_on_trace = grad_transform_on_trace
    autodiff.split_into_forward_and_backward = split_into_forward_and_backward


OUTPUTS = Mend("outputs that depend on no input that requires a gradient require one all the same", _apply)
