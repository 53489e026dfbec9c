"""SafeSoftmax: every softmax with a guard for fully masked rows becomes one symbol, safe_softmax.

A guarded softmax gives zeros, not NaN, in a row that holds nothing but -inf, a dead row. PyTorch has many spellings:

    before                                                    after
    torch._safe_softmax(x, -1), torch.ops.aten._safe_softmax  safe_softmax(x, -1)
    where((x == -inf).all(-1, keepdim=True), 0, softmax(x))   safe_softmax(x, -1)
    softmax(x).masked_fill(~(x != -inf).any(-1)[:, None], 0)  safe_softmax(x, -1)
    scaled_dot_product_attention(q, k, v, mask)               the same, with a safe_softmax in its decomposition

The last is for training, where Thunder decomposes attention into a plain softmax, unless an executor runs it whole. The
gradient of safe_softmax comes from its output, and is zero in a dead row; differentiating the guard gives NaN there.

Then the guard is dropped, for a plain softmax, where it is provably dead (``live_rows.py``) or the option
safe_softmax_keep_guard is off. With safe_softmax_aclnn_fallback off nothing is rewritten, and ATen runs _safe_softmax.

Executors claim safe_softmax with ``register_implementation``, like any symbol of Thunder; unclaimed, it runs as ATen's
``torch._safe_softmax``. Never done here: choosing a route (``routing.py``); judging a row by the NaNs of its softmax,
which would also hide those that a NaN or +inf in the row has made.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes, prims, utils
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.jit_ext import (
    _general_jit_lookaside_map,
    ensure_recursive_proxies,
    interpreter_needs_wrap,
    record_source_loc_in_symbol_header,
)
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx
from thunder.core.transforms import get_grad, put_grad, register_grad
from thunder.executors import torchex
from thunder.extend import Executor

from thunder_npu import options
from thunder_npu.transforms.live_rows import (
    CASTS,
    EXPANDS,
    MOVES,
    RESHAPES,
    Proof,
    fill_of,
    is_upcast,
    only_adds_axes,
    why_attention_lives,
    why_rows_live,
)
from thunder_npu.transforms.rewrite import (
    Plan,
    Producers,
    Rewrite,
    describe,
    emit,
    register_lookaside,
    same_sizes,
)

SPELLINGS = (torch._safe_softmax, torch.ops.aten._safe_softmax, torch.ops.aten._safe_softmax.default)


@ltorch.torchsymbol(*SPELLINGS, id="torch._safe_softmax")
def safe_softmax(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """Softmax of ``input`` along ``dim``, zeros in rows that hold only -inf. Shape of ``input``, dtype ``dtype or
    input.dtype``; ``dtype`` is applied before anything is computed. A row with a NaN, or with +inf, is NaN throughout.

    Whether a row is dead is decided before ``dtype`` is applied, as in ATen: -1e30 is no mask, although float16 holds
    it as -inf.

    Raises:
        IndexError: ``dim`` is out of range.
        NotImplementedError: the result dtype is not a floating one (as in eager).
    """
    result_dtype = to_dtype(dtype if dtype is not None else input.dtype)
    utils.check(
        dtypes.is_float_dtype(result_dtype),
        lambda: f"_safe_softmax of {input.dtype} needs dtype= with a floating dtype, got {dtype}",
        exception_type=NotImplementedError,
    )
    dim = utils.canonicalize_dim(input.ndim, dim)
    scores = maybe_convert_to_dtype(input, result_dtype)
    if any(type(n) is int and n == 0 for n in input.shape):
        return ltorch.zeros_like(scores)
    dead = ltorch.all_tensor(input == -math.inf, dim, keepdim=True)
    return ltorch.where(dead, 0.0, ltorch._softmax(scores, dim))


def safe_softmax_grad(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """Forward and gradient from the output alone: out·grad − out·Σ(out·grad), computed in float32 for half types.

    A dead row's output is zero, and so is its gradient; differentiating ``where(dead, 0, softmax)`` would give NaN.
    """
    out = safe_softmax(input, dim, dtype)
    compute = utils.get_computation_dtype(out.dtype)
    p, grad = maybe_convert_to_dtype(out, compute), maybe_convert_to_dtype(get_grad(out), compute)
    weighted = p * grad
    put_grad(input, maybe_convert_to_dtype(weighted - p * ltorch.sum(weighted, dim, keepdim=True), input.dtype))
    return out


def _run_by_aten(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    return _aten_safe_softmax(input, dim, None if dtype is None else to_torch_dtype(dtype))


def _attention_meta(*args: Any, **kwargs: Any) -> TensorProxy:
    out = ltorch.scaled_dot_product_attention.meta(*args, **kwargs)
    scope = get_tracectx().peek_scope()
    scope[:] = [
        new
        for bsym in scope
        for new in (
            emit(partial(safe_softmax, *bsym.args, **bsym.kwargs), bsym)
            if bsym.sym.id == ltorch._softmax.id
            else [bsym]
        )
    ]
    return out


# Thunder's VJP pairs the arguments of a gradient rule with those of the symbol's meta function.
_attention_meta.__signature__ = inspect.signature(ltorch.scaled_dot_product_attention.meta)  # type: ignore[attr-defined]

# Thunder's attention symbol to everyone who asks for its id (executors that run it whole, autocast), with another
# decomposition for those who do not.
attention = replace(ltorch.scaled_dot_product_attention, meta=_attention_meta, _module=ltorch, _hash=None)


# All of these are assignments to tables, so that importing this module a second time, or reloading it, changes nothing.
_aten_safe_softmax = torchex.ex.register_operator("_safe_softmax", like=safe_softmax, module=torch)
torchex.ex.register_implementation(safe_softmax, execution_transform=_run_by_aten)
register_grad(safe_softmax, safe_softmax_grad)
# Thunder copies the spellings into the interpreter's table when it is imported; later ones have to be entered by hand.
_lookaside = ensure_recursive_proxies(interpreter_needs_wrap(record_source_loc_in_symbol_header(safe_softmax)))
_general_jit_lookaside_map.update(dict.fromkeys((*SPELLINGS, safe_softmax), _lookaside))


# ---- the rule --------------------------------------------------------------------------------------------------------
class _Guard(Proof):
    """What a condition says about the rows of a tensor."""

    def elements(self, condition: Any) -> tuple[TensorProxy, bool] | None:
        """(x, True) if ``condition`` holds exactly for the elements of x that are -inf, (x, False) for all others."""
        made = self.made(condition)
        if made is None:
            return None
        a, b = (*made.args, None, None)[:2]
        if not isinstance(a, TensorProxy):
            return None
        match made.sym.id:
            case "torch.isneginf":
                return a, True
            case ltorch.eq.id | ltorch.le.id if self.bounds(b) == (-math.inf, -math.inf):
                return a, True
            case ltorch.ne.id if self.bounds(b) == (-math.inf, -math.inf):
                return a, False
            case ltorch.logical_not.id | ltorch.bitwise_not.id:
                inner = self.elements(a)
                return None if inner is None else (inner[0], not inner[1])
            case ltorch.logical_and.id | ltorch.bitwise_and.id:
                infinite, negative = self.made(a), self.made(b)
                if infinite is not None and infinite.sym.id == ltorch.lt.id:
                    infinite, negative = negative, infinite
                if infinite is None or negative is None or infinite.sym.id != ltorch.isinf.id:
                    return None
                is_negative = negative.sym.id == ltorch.lt.id and self.bounds(negative.args[1]) == (0.0, 0.0)
                return (infinite.args[0], True) if is_negative and infinite.args[0] is negative.args[0] else None
        return None

    def rows(self, condition: Any) -> tuple[TensorProxy, int, bool] | None:
        """(x, dim, True) if ``condition`` holds exactly for the dead rows of x along dim, (x, dim, False) for others.

        Its shape is not judged here: the axis may be kept with size 1, absent, or put back elsewhere.
        """
        made = self.made(condition)
        a = next(iter(made.args), None) if made is not None else None
        if made is None or not isinstance(a, TensorProxy):
            return None
        match made.sym.id:
            case ltorch.all_tensor.id | ltorch.any_tensor.id:
                inner = self.elements(a)
                dim = _one_axis(made.args[1], a.ndim)
                dead = made.sym.id == ltorch.all_tensor.id
                return None if inner is None or dim is None or inner[1] != dead else (inner[0], dim, dead)
            case ltorch.logical_not.id | ltorch.bitwise_not.id:
                rows = self.rows(a)
                return None if rows is None else (*rows[:2], not rows[2])
            case id if id in RESHAPES or only_adds_axes(made):
                return self.rows(a)
        # The maximum of a row is -inf exactly if all of it is; a NaN makes it NaN.
        inner = self.elements(condition)
        maximum = None if inner is None else self.made(inner[0])
        if inner is None or maximum is None or maximum.sym.id != ltorch.amax.id:
            return None
        dim = _one_axis(maximum.args[1], maximum.args[0].ndim)
        return None if dim is None else (maximum.args[0], dim, inner[1])

    def softmax(self, probabilities: Any) -> BoundSymbol | None:
        """The softmax whose result ``probabilities`` is, or is a cast of."""
        made = self.made(probabilities)
        while made is not None and made.sym.id in CASTS:
            made = self.made(made.args[0])
        return made if made is not None and made.sym.id == ltorch._softmax.id else None

    def value(self, t: Any) -> Hashable:
        """Equal for tensors that are -inf in the same places: a tensor, its wider copies, a view of it taken twice."""
        made = self.producers.of(t)
        if made is not None and made.sym.id == prims.PrimIDs.UPDATE_ALIASES:
            # Inserted before uses of what shares memory; without a write in between, which holds() rules out, nothing.
            return self.value(made.args[0][[out.name for out in made.output].index(t.name)])
        widened = made is not None and made.sym.id in CASTS and is_upcast(made)
        if made is None or not (widened or made.sym.id in MOVES):
            return t.name
        self.made(t)  # the proof rests on it
        source = self.value(made.args[0])
        return source if widened else (made.sym.id, source, str((made.args[1:], made.kwargs)))


def _one_axis(dim: Any, rank: int) -> int | None:
    if isinstance(dim, Sequence) and len(dim) == 1:
        dim = dim[0]
    if dim is None and rank == 1:
        return 0
    return utils.canonicalize_dim(rank, dim) if type(dim) is int else None


def _same_as_reduced(condition: TensorProxy, x: TensorProxy, axis: int) -> bool:
    """Whether ``condition`` has one element for each row of ``x`` along ``axis`` and broadcasts to ``x`` that way."""
    sizes = [size if type(size) is int else size.name for size in x._shape]
    sizes[axis : axis + 1] = [1]
    have = [size if type(size) is int else size.name for size in condition._shape]
    return [1] * (len(sizes) - len(have)) + have == sizes


def _inspect_guard(bsym: BoundSymbol, producers: Producers) -> Plan | None:
    condition, if_true, if_false = fill_of(bsym)  # type: ignore[misc]
    guard = _Guard(producers)
    for result, other, dead in ((if_false, if_true, True), (if_true, if_false, False)):  # noqa: B007
        softmax = guard.softmax(result)
        if softmax is not None and guard.bounds(other) == (0.0, 0.0):
            break
    else:
        return None
    x, dim = softmax.args
    what = f"{bsym.sym.name} over the softmax of {describe(x)} along dim {dim}"
    while (made := guard.made(condition)) is not None and made.sym.id in EXPANDS:
        condition = made.args[0]
    rows = guard.rows(condition)
    if type(dim) is not int:
        return Plan(what, "left, the dim is known only at run time")
    axis = utils.canonicalize_dim(x.ndim, dim)
    if rows is None or rows[2] != dead or guard.value(rows[0]) != guard.value(x):
        return Plan(what, "left, its condition is not that a whole row of the softmax's input is -inf")
    if rows[1] != axis or not _same_as_reduced(condition, x, axis):
        return Plan(what, "left, its condition is about other rows than those of the softmax")
    if bsym.output.dtype != result.dtype or not same_sizes(bsym.output, x):
        return Plan(what, "left, it also broadcasts or promotes the softmax")
    if not guard.holds():
        return Plan(what, "left, a tensor was written in place between its parts")
    if not options.get("safe_softmax_aclnn_fallback"):
        return Plan(what, "left, the option safe_softmax_aclnn_fallback is off")

    dropped = _dropped(x, dim, producers)
    symbol = ltorch._softmax if dropped is not None else safe_softmax

    def build() -> TensorProxy:
        out = symbol(x, dim, dtype=softmax.kwargs["dtype"])
        return out if out.dtype == result.dtype else ltorch.to(out, result.dtype)

    if dropped is not None:
        return Plan(f"{what} → softmax", f"guard dropped, {dropped}", build)
    return Plan(f"{what} → safe_softmax", "guard kept, a row may hold nothing but -inf", build)


def _inspect_safe_softmax(bsym: BoundSymbol, producers: Producers) -> Plan:
    x, dim, dtype = bsym.args
    what = f"_safe_softmax of {describe(x)} along dim {dim}"
    if not options.get("safe_softmax_aclnn_fallback"):
        return Plan(what, "left to ATen, the option safe_softmax_aclnn_fallback is off")
    dropped = _dropped(x, dim, producers)
    if dropped is None:
        return Plan(what, "guard kept, a row may hold nothing but -inf")
    return Plan(f"{what} → softmax", f"guard dropped, {dropped}", partial(ltorch._softmax, x, dim, dtype=dtype))


def _inspect_attention(bsym: BoundSymbol, producers: Producers) -> Plan | None:
    query, key, _, mask = bsym.args[:4]
    if not isinstance(mask, TensorProxy):
        return None  # is_causal leaves every query the first key
    what = f"scaled_dot_product_attention of {describe(query)} with mask {describe(mask)}"
    if not options.get("safe_softmax_aclnn_fallback"):
        return Plan(what, "left, the option safe_softmax_aclnn_fallback is off")
    if not options.get("safe_softmax_keep_guard"):
        return Plan(what, "left with a plain softmax, the option safe_softmax_keep_guard is off")
    live = why_attention_lives(mask, query, key, producers)
    if live is not None:
        return Plan(what, f"left with a plain softmax, {live}")
    return Plan(
        f"{what} → the same with safe_softmax where it is decomposed",
        "the mask may cover a whole row",
        partial(attention, *bsym.args, **bsym.kwargs),
    )


def _dropped(x: TensorProxy, dim: Any, producers: Producers) -> str | None:
    """Why a guarded softmax of ``x`` needs no guard, None if it does."""
    if not options.get("safe_softmax_keep_guard"):
        return "the option safe_softmax_keep_guard is off"
    return why_rows_live(x, dim, producers)


class SafeSoftmax(Rewrite):
    """The transform: a softmax with a guard for dead rows becomes safe_softmax, or softmax if no row can be dead."""

    @staticmethod
    def inspect(bsym: BoundSymbol, producers: Producers) -> Plan | None:
        """What to do with a where, masked_fill, _safe_softmax or attention; None for any other symbol."""
        if bsym.sym.id in (ltorch.where.id, ltorch.masked_fill.id):
            return _inspect_guard(bsym, producers)
        if bsym.sym.id == safe_softmax.id:
            return _inspect_safe_softmax(bsym, producers)
        if bsym.sym.id == attention.id:
            return _inspect_attention(bsym, producers)
        return None


def _attention_of_groups(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorProxy:
    """torch.nn.functional.scaled_dot_product_attention. Thunder 0.2.6 does not know ``enable_gqa``.

    Heads of key and value, fewer than those of the query, are repeated for the queries of their group.
    """
    if enable_gqa:
        key, value = (
            t if t.shape[-3] == query.shape[-3] else ltorch.repeat_interleave(t, query.shape[-3] // t.shape[-3], -3)
            for t in (key, value)
        )
    return ltorch.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)


def register(executor: Executor) -> None:
    """Lets ``executor`` recognise guards while a function is traced: what :class:`SafeSoftmax` does, by itself."""
    for symbol, spellings in (
        (ltorch.where, (torch.where,)),
        (ltorch.masked_fill, (torch.masked_fill, torch.Tensor.masked_fill)),
        (safe_softmax, SPELLINGS),
    ):
        register_lookaside(executor, (*spellings, symbol), symbol, SafeSoftmax)
    attentions = (torch.nn.functional.scaled_dot_product_attention, ltorch.scaled_dot_product_attention)
    register_lookaside(executor, attentions, _attention_of_groups, SafeSoftmax)
