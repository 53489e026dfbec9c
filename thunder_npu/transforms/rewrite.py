"""How the rewrites of this package reach a trace, and the record they leave in it.

The heart of a rewrite is a function ``inspect(bsym, producers) -> Plan | None``: it looks at one bound symbol, changes
nothing, and says in words what should happen. This module carries plans out, at two places with the same result:

* in a :class:`Rewrite`, a Thunder transform over the whole trace before autograd (``transforms=[…]``, the NPU plugin);
* in a lookaside that an executor owns (:func:`register_lookaside`), right after the interpreter has recorded the
  symbol; so ``executors=[…]`` alone is enough, in inference and in training.

A replacement has the output proxy of what it replaces, so nothing downstream has to be renamed. Every decision, done or
declined, becomes a comment above the symbol in the printed trace and a :class:`Decision` in the symbol's tags;
:func:`decisions` reads them back. This module never decides what to rewrite, and keeps no state outside the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import thunder
import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.interpreter import unwrap, wrap_const
from thunder.core.jit_ext import record_source_loc_in_symbol_header, recursively_proxy
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, get_tracectx, tracectx
from thunder.core.transform_common import Transform
from thunder.core.update_aliases import _is_inplace_op
from thunder.extend import Executor
from thunder.transforms.autocast import disable_autocast


@dataclass(frozen=True, eq=False)
class Decision:
    """What a rewrite did with one symbol, and why. Two decisions are equal only if they are the same one."""

    transform: str
    done: bool
    line: str
    reason: str

    def __str__(self) -> str:
        return f"{self.transform}: {self.line}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """The outcome of inspecting one bound symbol.

    ``what`` names the symbol and its replacement, or the symbol alone; ``build`` emits the replacement into the current
    trace and returns its output, which has the metadata of the output it replaces. Without ``build`` the symbol stays.
    """

    what: str
    reason: str
    build: Callable[[], TensorProxy] | None = None


class Producers:
    """Which bound symbol made a proxy, and whether an in-place operation has run since.

    While Thunder's interpreter records a trace, a tensor keeps its proxy when it is written in place. A pattern may be
    rewritten only if no in-place operation lies between its first symbol and its last: :meth:`stable` answers that.
    """

    def __init__(self) -> None:
        self._made_by: dict[str, tuple[int, BoundSymbol]] = {}
        self._count = 0
        self._last_inplace = -1
        self._scopes: dict[int, tuple[list[BoundSymbol], int]] = {}

    def add(self, bsym: BoundSymbol) -> None:
        """Takes note of the next symbol of the trace."""
        if bsym.sym.id == prims.PrimIDs.UNPACK_TRIVIAL:
            return  # an input: no symbol made it
        if _is_inplace_op(bsym):
            self._last_inplace = self._count
        for out in bsym.flat_proxy_outs:
            self._made_by[out.name] = (self._count, bsym)
        self._count += 1

    def extend(self, trace: TraceCtx) -> None:
        """Takes note of what the open scopes of ``trace`` gained since the last call, the newest symbol excepted."""
        for scope in trace.scopes:
            # The entry holds the list itself, so that its id is not given to another one.
            _, seen = self._scopes.get(id(scope), (scope, 0))
            end = len(scope) - (scope is trace.scopes[-1])
            for bsym in scope[seen:end]:
                self.add(bsym)
            self._scopes[id(scope)] = (scope, end)

    def of(self, value: Any, *ids: str) -> BoundSymbol | None:
        """The symbol that made ``value``, if it did so in this trace and (with ``ids``) is one of those."""
        if not isinstance(value, Proxy) or value.name not in self._made_by:
            return None
        bsym = self._made_by[value.name][1]
        return bsym if not ids or bsym.sym.id in ids else None

    def stable(self, *values: Any) -> bool:
        """Whether nothing has been written in place since the first of ``values`` was made (inputs are not asked)."""
        made = [self._made_by[v.name][0] for v in values if isinstance(v, Proxy) and v.name in self._made_by]
        return min(made, default=self._count) > self._last_inplace


def describe(value: TensorProxy) -> str:
    """A tensor as traces print it, without its device: ``f32[2, 3]``."""
    sizes = ", ".join(n.name if isinstance(n, NumberProxy) else str(n) for n in value._shape)
    return f"{value.dtype.shortname()}[{sizes}]"


def same_sizes(a: TensorProxy, b: TensorProxy) -> bool:
    """Whether the shapes agree, as far as they are known; two sizes of which one is symbolic count as equal.

    Thunder records a read of ``.shape`` in the trace when sizes are symbolic; hence ``._shape``, here and elsewhere.
    """
    known = [(m, n) for m, n in zip(a._shape, b._shape, strict=False) if type(m) is int and type(n) is int]
    return a.ndim == b.ndim and all(m == n for m, n in known)


def emit(build: Callable[[], TensorProxy], bsym: BoundSymbol) -> list[BoundSymbol]:
    """The symbols that ``build`` emits, the last of them with the output of ``bsym``.

    Raises:
        AssertionError: what was built has other metadata than the output of ``bsym``.
    """
    trace = get_tracectx()
    trace.push_scope([])
    with disable_autocast():  # what the trace holds has been cast already
        out = build()
    emitted: list[BoundSymbol] = trace.pop_scope()
    old = bsym.output
    if (out.dtype, out.device) != (old.dtype, old.device) or not same_sizes(out, old):
        raise AssertionError(f"{bsym.sym.name} was rewritten to {describe(out)}, expected {describe(old)}")
    where = {"source_filename": bsym.source_filename, "source_positions": bsym.source_positions}
    swap = {variableify(out): old}
    return [new.from_bsym_swap_proxies(swap).from_bsym(**where, tags=new.tags | bsym.tags) for new in emitted]


def _location(bsym: BoundSymbol) -> str:
    if bsym.source_filename is None or bsym.source_positions is None:
        return ""
    return f"{Path(bsym.source_filename).name}:{bsym.source_positions.lineno}: "


def rewrite_symbol(rewrite: type[Rewrite], bsym: BoundSymbol, producers: Producers) -> list[BoundSymbol]:
    """The symbols that take the place of ``bsym`` (itself, where nothing is to be done), in the current trace.

    A symbol that ``rewrite`` has decided on before is left as it is; that makes every rewrite idempotent.
    """
    name = rewrite.__name__
    if bsym.sym.id == ltorch.checkpoint.id:
        inner = rewrite_symbols(rewrite, bsym.subsymbols, producers)
        return [bsym if inner is None else bsym.from_bsym(subsymbols=inner)]
    if any(isinstance(tag, Decision) and tag.transform == name for tag in bsym.tags):
        return [bsym]
    plan = rewrite.inspect(bsym, producers)
    if plan is None:
        return [bsym]
    decision = Decision(name, plan.build is not None, _location(bsym) + plan.what, plan.reason)
    symbols = [bsym.from_bsym()] if plan.build is None else emit(plan.build, bsym)
    last = symbols[-1]
    last.header = [*(last.header.splitlines() if isinstance(last.header, str) else last.header), str(decision)]
    for symbol in symbols:
        symbol.tags.add(decision)
    return symbols


def rewrite_symbols(
    rewrite: type[Rewrite], bsyms: Iterable[BoundSymbol], producers: Producers
) -> list[BoundSymbol] | None:
    """``bsyms`` rewritten in order, or None if that changed nothing."""
    result: list[BoundSymbol] = []
    changed = False
    for bsym in bsyms:
        symbols = rewrite_symbol(rewrite, bsym, producers)
        changed = changed or symbols[-1] is not bsym
        for symbol in symbols:
            producers.add(symbol)
        result += symbols
    return result if changed else None


class Rewrite(Transform):
    """A rewrite over the whole computation trace, before autograd. A subclass says what to do with one symbol."""

    @staticmethod
    def inspect(bsym: BoundSymbol, producers: Producers) -> Plan | None:
        """What to do with ``bsym``, or None where it is none of this rewrite's business. Changes nothing."""
        raise NotImplementedError

    def transform_traces_pre_prologue(
        self, prologue_trace: TraceCtx, computation_trace: TraceCtx, epilogue_trace: TraceCtx | None, **_: Any
    ) -> tuple[TraceCtx, TraceCtx, TraceCtx | None]:
        """The computation trace rewritten; the very same traces where there is nothing to rewrite."""
        new_trace = from_trace(computation_trace)
        with tracectx(new_trace):
            bsyms = rewrite_symbols(type(self), computation_trace.bound_symbols, Producers())
        if bsyms is None:
            return prologue_trace, computation_trace, epilogue_trace
        new_trace.bound_symbols = bsyms
        new_trace.set_provenance(TraceProvenance(type(self).__name__))
        return prologue_trace, new_trace, epilogue_trace


# One index for each trace under construction, so that looking a producer up costs the same however long the trace is.
_UNDER_CONSTRUCTION: WeakKeyDictionary[TraceCtx, Producers] = WeakKeyDictionary()


def _proxies(args: Any) -> Any:
    """``args`` with the tensors inside a list or tuple input as proxies.

    Thunder's own lookasides do this; those of executors are handed such a container with the tensors themselves.
    """
    if not isinstance(args, (list, tuple)) or not any(isinstance(a, torch.Tensor) for a in args):
        return args
    wrapped = wrap_const(args)  # the interpreter's own wrapper of this object, which knows where it came from
    recursively_proxy(wrapped)
    return unwrap(wrapped)


def register_lookaside(executor: Executor, spellings: Iterable[Any], call: Callable, *rewrites: type[Rewrite]) -> None:
    """Makes ``executor`` run ``call`` (a symbol, or a function that ends in one) for ``spellings`` while a function is
    traced, and ``rewrites`` on the symbol that this records."""

    @record_source_loc_in_symbol_header
    @wraps(call)
    def lookaside(*args: Any, **kwargs: Any) -> Any:
        trace = get_tracectx()
        scope = trace.peek_scope()
        before = len(scope)
        out = call(*map(_proxies, args), **{k: _proxies(v) for k, v in kwargs.items()})
        if len(scope) > before:
            producers = _UNDER_CONSTRUCTION.setdefault(trace, Producers())
            producers.extend(trace)
            for rewrite in rewrites:
                scope[-1:] = rewrite_symbol(rewrite, scope[-1], producers)
        return out

    executor._lookasides.update(dict.fromkeys(spellings, lookaside))


def decisions(jitted: Callable) -> list[Decision]:
    """What the rewrites decided for the last call of ``jitted`` (from ``thunder.jit``), in the order of its trace.

    Raises:
        TypeError: ``jitted`` is not a thunder.jit function, or has not been called yet (Thunder's own error).
    """
    found: dict[Decision, None] = {}
    for trace in thunder.last_traces(jitted):
        for bsym in trace.bound_symbols:
            for symbol in (bsym, *bsym.subsymbols) if bsym.sym.id == ltorch.checkpoint.id else (bsym,):
                found.update(dict.fromkeys(tag for tag in symbol.tags if isinstance(tag, Decision)))
    return list(found)
