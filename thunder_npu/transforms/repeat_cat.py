"""RepeatCat: cat and stack of one tensor become an expand and one copy.

The pattern comes from rotary embeddings, ``emb = torch.cat((freqs, freqs), dim=-1)``:

    before                                  after
    emb = cat([freqs, freqs], -1)           t0 = unsqueeze(freqs, -2)
                                            t1 = expand(t0, …, 2, n)
                                            t2 = reshape(t1, …, 2 * n)
                                            emb = contiguous(t2)

An expand can join a fused region, a cat ends it; and the gradient is one sum over the expanded axis instead of a slice
for each copy and their additions. Also rewritten: a sequence with a period (``cat([x, y, x, y])`` repeats
``cat([x, y])``), repeats of repeats on the same or other axes (one symbol, one copy), and ``stack`` of one tensor.

The last line is there for the result to own its memory, as eager's does. The reshape of an expanded tensor copies, and
contiguous then does nothing, except where the axis has size 1 or stride 0: there the reshape stays a view whose
elements overlap, and contiguous makes the copy.

Known cost: the period of a sequence is written twice, once by its own cat. Never rewritten: operands that are different
tensors, whatever their values; ``Tensor.repeat``, which Thunder has already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import utils
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.transforms import get_grad, put_grad, register_grad
from thunder.extend import Executor

from thunder_npu import options
from thunder_npu.transforms.rewrite import Plan, Producers, Rewrite, describe, register_lookaside


# ---- symbols ---------------------------------------------------------------------------------------------------------
def _with_repeats(shape: Sequence[Any], repeats: Sequence[int]) -> tuple[list[Any], list[int]]:
    """``shape`` with an axis of length n in front of each axis that is repeated n times, and where these axes are."""
    sizes: list[Any] = []
    axes: list[int] = []
    for n, size in zip(repeats, shape, strict=True):
        if n != 1:
            axes.append(len(sizes))
            sizes.append(n)
        sizes.append(size)
    return sizes, axes


def _owned(a: TensorProxy) -> TensorProxy:
    """``a`` as a tensor that is no view. An empty tensor counts as contiguous, so that only clone makes it one."""
    empty = any(type(size) is int and size == 0 for size in a._shape)
    return ltorch.clone(a) if empty else ltorch.contiguous(a)


@ltorch.torchsymbol(id="thunder_npu.repeat")
def repeat(input: TensorProxy, repeats: tuple[int, ...]) -> TensorProxy:
    """``input`` repeated ``repeats[d]`` times along each axis d, as ``Tensor.repeat`` does it, in memory of its own."""
    shape = input.shape
    sizes, axes = _with_repeats(shape, repeats)
    for axis in axes:
        input = ltorch.unsqueeze(input, axis)
    expanded = ltorch.expand(input, *sizes)
    return _owned(ltorch.reshape(expanded, tuple(n * size for n, size in zip(repeats, shape, strict=True))))


def _repeat_grad(input: TensorProxy, repeats: tuple[int, ...]) -> TensorProxy:
    """One sum over the axes that were expanded."""
    out = repeat(input, repeats)
    sizes, axes = _with_repeats(input.shape, repeats)
    put_grad(input, ltorch.sum(ltorch.reshape(get_grad(out), tuple(sizes)), axes))
    return out


@ltorch.torchsymbol(id="thunder_npu.repeat_stack")
def repeat_stack(input: TensorProxy, n: int, dim: int) -> TensorProxy:
    """``n`` copies of ``input`` along a new axis ``dim`` (≥ 0), in memory of their own."""
    shape = input.shape
    return _owned(ltorch.expand(ltorch.unsqueeze(input, dim), *shape[:dim], n, *shape[dim:]))


def _repeat_stack_grad(input: TensorProxy, n: int, dim: int) -> TensorProxy:
    out = repeat_stack(input, n, dim)
    put_grad(input, ltorch.sum(get_grad(out), dim))
    return out


register_grad(repeat, _repeat_grad)
register_grad(repeat_stack, _repeat_stack_grad)


# ---- the rule --------------------------------------------------------------------------------------------------------
_CONCATENATIONS = (ltorch.cat.id, ltorch.stack.id, repeat.id, repeat_stack.id)


def _resolve(t: TensorProxy, producers: Producers) -> tuple[TensorProxy, tuple[int, ...]]:
    """``t`` as (base, repeats): what it is a repeat of, or itself."""
    made = producers.of(t, repeat.id)
    if made is None or not producers.stable(t):
        return t, (1,) * t.ndim
    base, repeats = made.args
    return base, repeats


def _value(t: TensorProxy, producers: Producers) -> Any:
    """Equal for two operands that are the same tensor, or were concatenated of the same tensors in the same way."""
    made = producers.of(t, *_CONCATENATIONS)
    if made is None or not producers.stable(t):
        return t.name
    return made.sym.id, tuple(p.name for p in made.flat_proxy_args), str(made.args[1:])


def _period(values: Sequence[Any]) -> int:
    """The length of the shortest sequence that ``values`` repeats a whole number of times."""
    n = len(values)
    return next(p for p in range(1, n + 1) if n % p == 0 and all(values[i] == values[i % p] for i in range(p, n)))


class RepeatCat(Rewrite):
    """The transform: cat and stack of one tensor, or of a sequence with a period, become an expand and one copy."""

    @staticmethod
    def inspect(bsym: BoundSymbol, producers: Producers) -> Plan | None:
        """What to do with a cat or stack whose operands repeat; None for any other symbol."""
        if bsym.sym.id not in (ltorch.cat.id, ltorch.stack.id):
            return None
        tensors, dim = bsym.args
        if len(tensors) < 2 or not all(type(t) is TensorProxy for t in tensors):
            return None
        period = _period([_value(t, producers) for t in tensors])
        copies = len(tensors) // period
        resolved = [_resolve(t, producers) for t in tensors]
        if len({base.name for base, _ in resolved}) == len(tensors) and copies == 1:
            return None

        what = f"{bsym.sym.name} of {len(tensors)} tensors along dim {dim}, the first {describe(tensors[0])}"
        if not options.get("repeat_cat"):
            return Plan(what, "left, the option repeat_cat is off")
        if type(dim) is not int:
            return Plan(what, "left, its dim is known only at run time")
        if bsym.sym.id == ltorch.stack.id:
            if period > 1:
                return Plan(what, "left, only some of its operands are one tensor")
            axis = utils.canonicalize_dim(tensors[0].ndim + 1, dim)
            build = partial(repeat_stack, tensors[0], copies, axis)
            return Plan(f"{what} → unsqueeze, expand", f"{copies} times one tensor", build)

        axis = utils.canonicalize_dim(tensors[0].ndim, dim)
        after = f"{what} → unsqueeze, expand, reshape"
        if len({(base.name, *repeats[:axis], *repeats[axis + 1 :]) for base, repeats in resolved}) == 1:
            base, repeats = resolved[0]
            times = sum(repeats[axis] for _, repeats in resolved)
            whole = (*repeats[:axis], times, *repeats[axis + 1 :])
            return Plan(after, f"{times} times one tensor", partial(repeat, base, whole))
        if copies == 1:
            return Plan(what, "left, some operands repeat but the sequence as a whole does not")

        def repeat_the_period() -> TensorProxy:
            once = tensors[0] if period == 1 else ltorch.cat(tensors[:period], dim)
            return repeat(once, tuple(copies if d == axis else 1 for d in range(once.ndim)))

        return Plan(
            after, f"{copies} times the same {'value' if period == 1 else f'{period} operands'}", repeat_the_period
        )


# ---- torch.cat and torch.stack as PyTorch spells them ----------------------------------------------------------------
def _is_legacy_empty(t: TensorProxy) -> bool:
    size = t._shape[0] if t.ndim == 1 else None
    return size is not None and (size if type(size) is int else size.value) == 0


def _promoted(tensors: Sequence[TensorProxy]) -> list[TensorProxy]:
    """``tensors`` in the dtype that eager gives their concatenation; a tensor that occurs twice is cast once."""
    dtype = to_dtype(reduce(torch.promote_types, (to_torch_dtype(t.dtype) for t in tensors)))
    cast = {t.name: t if t.dtype == dtype else ltorch.to(t, dtype) for t in tensors}
    return [cast[t.name] for t in tensors]


def _concatenate(symbol: Symbol, tensors: Sequence[TensorProxy], dim: Any, axis: Any, out: Any) -> TensorProxy:
    if out is not None:
        raise NotImplementedError(f"torch.{symbol.name}(out=…) cannot be traced by Thunder: assign the result instead")
    if tensors and all(type(t) is TensorProxy for t in tensors):
        tensors = _promoted(tensors)
        if symbol.id == ltorch.cat.id and any(t.ndim != 1 for t in tensors):
            # Eager skips operands of shape (0,), a relic of tensors without a shape; their dtype has counted above.
            tensors = [t for t in tensors if not _is_legacy_empty(t)]
    return symbol(tensors, dim if axis is None else axis)


def _cat(tensors: Sequence[TensorProxy], dim: Any = 0, *, axis: Any = None, out: Any = None) -> TensorProxy:
    """torch.cat. Thunder 0.2.6 knows neither mixed dtypes, nor operands of shape (0,), nor ``axis=``."""
    return _concatenate(ltorch.cat, tensors, dim, axis, out)


def _stack(tensors: Sequence[TensorProxy], dim: Any = 0, *, axis: Any = None, out: Any = None) -> TensorProxy:
    """torch.stack. Thunder 0.2.6 knows neither mixed dtypes, nor ``tensors=``, nor ``axis=``."""
    return _concatenate(ltorch.stack, tensors, dim, axis, out)


def register(executor: Executor) -> None:
    """Lets ``executor`` rewrite repeats while a function is traced: what :class:`RepeatCat` does, without naming it."""
    cats = (torch.cat, torch.concat, torch.concatenate, ltorch.cat)
    register_lookaside(executor, cats, _cat, RepeatCat)
    register_lookaside(executor, (torch.stack, ltorch.stack), _stack, RepeatCat)
