"""SinkRepeat: a repeat moves below the elementwise operations that follow it, when that shrinks the work.

The pattern comes from rotary embeddings, where cos and sin of ``cat((freqs, freqs), -1)`` are the same numbers twice:

    before (RepeatCat has made a repeat of the cat)      after
    emb = repeat(freqs, (1, 1, 2))       [1, S, D]
    t0 = cos(emb)                        [1, S, D]       t0 = cos(freqs)                   [1, S, D/2]
    t1 = mul(t0, scaling)                [1, S, D]       t1 = mul(t0, scaling)             [1, S, D/2]
    c = unsqueeze(t1, 1)                 [1, 1, S, D]    c = unsqueeze(t1, 1)              [1, 1, S, D/2]
                                                         t2 = reshape(q, …, 2, D/2)        a view
                                                         t3 = mul(t2, unsqueeze(c, 3))     [B, H, S, 2, D/2]
    t4 = mul(q, c)                       [B, H, S, D]    t4 = reshape(t3, …, D)            a view

The last step needs no repeated tensor at all: the other operand is viewed with the repeated axis split in two, and the
small operand is broadcast. A repeat that reaches something else (a matmul, the result) is written out there. Whether
the work shrinks is counted: elements that all operations but views write, before and after; each repeat is moved only
if fewer are left. The numbers are identical: an operation on equal inputs has equal results, and gradients are sums of
the same terms. Never moved: past an in-place update, nor what is no repeat (Tensor.repeat, a cat of unlike tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import thunder.torch as ltorch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx
from thunder.core.transform_common import Transform, dce

from thunder_npu.transforms.repeat_cat import repeat

Repeats = tuple[int, ...]
Pending = tuple[TensorProxy, Repeats]

_ELEMENTWISE = frozenset({
    PrimIDs.ABS, PrimIDs.ACOS, PrimIDs.ACOSH, PrimIDs.ASIN, PrimIDs.ASINH, PrimIDs.ATAN, PrimIDs.ATANH,
    PrimIDs.BITWISE_NOT, PrimIDs.CEIL, PrimIDs.COS, PrimIDs.COSH, PrimIDs.ERF, PrimIDs.ERFC, PrimIDs.EXP,
    PrimIDs.EXP2, PrimIDs.EXPM1, PrimIDs.FLOOR, PrimIDs.ISFINITE, PrimIDs.LOG, PrimIDs.LOG10, PrimIDs.LOG1P,
    PrimIDs.LOG2, PrimIDs.NEG, PrimIDs.RECIPROCAL, PrimIDs.ROUND, PrimIDs.RSQRT, PrimIDs.SIGN, PrimIDs.SIN,
    PrimIDs.SINH, PrimIDs.SQRT, PrimIDs.TAN, PrimIDs.TANH, PrimIDs.TRUNC, PrimIDs.CONVERT_ELEMENT_TYPE, PrimIDs.CLONE,
    PrimIDs.SHALLOW_COPY, PrimIDs.ADD, PrimIDs.ATAN2, PrimIDs.BITWISE_AND, PrimIDs.BITWISE_OR, PrimIDs.BITWISE_XOR,
    PrimIDs.DIV, PrimIDs.EQ, PrimIDs.FMOD, PrimIDs.GE, PrimIDs.GT, PrimIDs.LE, PrimIDs.LT, PrimIDs.MAXIMUM,
    PrimIDs.MINIMUM, PrimIDs.MUL, PrimIDs.NE, PrimIDs.POW, PrimIDs.REMAINDER, PrimIDs.SUB, PrimIDs.WHERE,
})  # fmt: skip
_VIEWS = frozenset(
    {PrimIDs.BROADCAST_IN_DIM, PrimIDs.RESHAPE, PrimIDs.SQUEEZE, PrimIDs.TRANSPOSE, PrimIDs.VIEW, PrimIDs.SLICE}
    | {PrimIDs.SHALLOW_COPY, PrimIDs.UNPACK_TRIVIAL, PrimIDs.RETURN}
)
_CLAIMED_VIEWS = ("torch_prims_reshape_impl", "torch_slice_prim_impl", "shallow_copy")  # of Thunder's torch executor
_IN_PLACE = ("copy_", "update_aliases")


def _prims(bsym: BoundSymbol) -> list[BoundSymbol]:
    if not bsym.subsymbols:
        return [bsym] if bsym.sym.is_prim else []
    return [prim for sub in bsym.subsymbols for prim in _prims(sub)]


def elements_written(trace: TraceCtx) -> int:
    """Elements that the trace's operations write, views excepted; a repeat writes all of its output once."""
    total = 0
    for bsym in trace.bound_symbols:
        if bsym.sym.id == repeat.id:
            total += prod(bsym.output.shape)
            continue
        for prim in _prims(bsym):
            if prim.sym.id not in _VIEWS and prim.sym.name not in _CLAIMED_VIEWS:
                total += sum(prod(p.shape) for p in prim.flat_proxy_outs if isinstance(p, TensorProxy))
    return total


def _is_elementwise(bsym: BoundSymbol, *, broadcasts: bool) -> bool:
    """Whether `bsym` is one, on tensors given as direct arguments; `broadcasts`: it may spread its operands."""
    prims = _prims(bsym)
    allowed = _ELEMENTWISE | ({PrimIDs.BROADCAST_IN_DIM} if broadcasts else set())
    direct = [a for a in (*bsym.args, *bsym.kwargs.values()) if isinstance(a, TensorProxy)]
    return (
        bool(prims)
        and isinstance(bsym.output, TensorProxy)
        and len(direct) == len(bsym.flat_proxy_args)
        and all(prim.sym.id in allowed for prim in prims)
    )


class _Sinker:
    """Rewrites one trace, with some of its repeats held back until something needs them."""

    def __init__(self, trace: TraceCtx, chosen: set[str]) -> None:
        self.old = trace
        self.new = from_trace(trace)
        self.chosen = chosen
        self.pending: dict[str, Pending] = {}
        self.proxies: dict[str, TensorProxy] = {}  # the repeated tensors that are held back

    def run(self) -> TraceCtx:
        with tracectx(self.new):
            for bsym in self.old.bound_symbols:
                if bsym.sym.name in _IN_PLACE:
                    for name in [*self.pending]:
                        self.write_out(name)
                if not self.sink(bsym):
                    for p in bsym.flat_proxy_args:
                        self.write_out(p.name)
                    self.new.bound_symbols.append(bsym)
        self.new.set_provenance(TraceProvenance("SinkRepeat"))
        return dce(self.new)

    # ---- emitting
    def emit(self, build: Callable[[], TensorProxy], old: TensorProxy | None = None) -> TensorProxy:
        """What `build` records; its result takes the name of `old`, which it replaces."""
        self.new.push_scope([])
        out = build()
        emitted = self.new.pop_scope()
        if old is not None:
            swap = {variableify(out): old}
            emitted = [new.from_bsym_swap_proxies(swap) for new in emitted]
            out = old
        self.new.bound_symbols += emitted
        return out

    def write_out(self, name: str) -> None:
        if name in self.pending:
            base, repeats = self.pending.pop(name)
            self.emit(lambda: repeat(base, repeats), self.proxies[name])

    # ---- rules
    def hold(self, out: TensorProxy, base: TensorProxy, repeats: Repeats) -> bool:
        self.pending[out.name] = (base, repeats)
        self.proxies[out.name] = out
        return True

    def sink(self, bsym: BoundSymbol) -> bool:
        """Whether `bsym` has been replaced by something on the unrepeated tensor."""
        if bsym.sym.id == repeat.id:
            base, repeats = bsym.args
            if base.name in self.pending:
                inner, before = self.pending[base.name]
                return self.hold(bsym.output, inner, tuple(a * b for a, b in zip(before, repeats, strict=True)))
            return bsym.output.name in self.chosen and self.hold(bsym.output, base, tuple(repeats))
        held = [p for p in bsym.flat_proxy_args if p.name in self.pending]
        if not held:
            return False
        if bsym.sym.id == ltorch.unsqueeze.id and isinstance(bsym.args[1], int):
            base, repeats = self.pending[held[0].name]
            dim = bsym.args[1] % (base.ndim + 1)
            lifted = self.emit(lambda: ltorch.unsqueeze(base, dim))
            return self.hold(bsym.output, lifted, (*repeats[:dim], 1, *repeats[dim:]))
        tensors = bsym.flat_proxy_args
        same = {self.pending[p.name][1] for p in held}
        if len(held) == len(tensors) and len(same) == 1 and _is_elementwise(bsym, broadcasts=False):
            small = self.emit(lambda: bsym.sym(*map(self.base, bsym.args), **self.bases(bsym.kwargs)))
            return self.hold(bsym.output, small, same.pop())
        return self.split(bsym, held, tensors)

    def base(self, value: Any) -> Any:
        return self.pending[value.name][0] if isinstance(value, Proxy) and value.name in self.pending else value

    def bases(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {key: self.base(value) for key, value in kwargs.items()}

    def split(self, bsym: BoundSymbol, held: Sequence[Proxy], tensors: Sequence[Proxy]) -> bool:
        """``op(y, repeat(x))`` as ``reshape(op(reshape(y), unsqueeze(x)))``, no repeated tensor anywhere."""
        if len(held) != 1 or len(tensors) != 2 or not _is_elementwise(bsym, broadcasts=True):
            return False
        small, repeats = self.pending[held[0].name]
        (other,) = (p for p in tensors if p.name != held[0].name)
        axes = [axis for axis, n in enumerate(repeats) if n > 1]
        out = bsym.output
        if len(axes) != 1 or not isinstance(other, TensorProxy) or other.ndim != small.ndim or out.ndim != small.ndim:
            return False
        axis, n = axes[0], repeats[axes[0]]
        if other.shape[axis] != n * small.shape[axis]:
            return False

        def build() -> TensorProxy:
            y = ltorch.reshape(other, (*other.shape[:axis], n, small.shape[axis], *other.shape[axis + 1 :]))
            x = ltorch.unsqueeze(small, axis)
            operands = {held[0].name: x, other.name: y}
            args = [operands[a.name] if isinstance(a, Proxy) else a for a in bsym.args]
            result = bsym.sym(*args, **bsym.kwargs)
            return ltorch.reshape(result, tuple(out.shape))

        self.emit(build, out)
        return True


class SinkRepeat(Transform):
    """The transform; give it after :class:`RepeatCat`, whose repeats it moves (or let the executors make them)."""

    def transform_traces_pre_prologue(
        self, prologue_trace: TraceCtx, computation_trace: TraceCtx, epilogue_trace: TraceCtx | None, **_: Any
    ) -> tuple[TraceCtx, TraceCtx, TraceCtx | None]:
        """The computation trace with its repeats moved; the very same trace where none shrinks the work."""
        best = computation_trace
        for name in [b.output.name for b in computation_trace.bound_symbols if b.sym.id == repeat.id]:
            if any(b.sym.id == repeat.id and b.output.name == name for b in best.bound_symbols):
                moved = _Sinker(best, {name}).run()
                if elements_written(moved) < elements_written(dce(best)):
                    best = moved
        return prologue_trace, best, epilogue_trace
