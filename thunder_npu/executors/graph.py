"""A trace as a graph: who makes and who reads what, and what each symbol is to a region of the fusion pass.

It knows what may not be moved (in-place updates that something sees, the order of random numbers), what Thunder labels
wrongly, and what costs nothing to compute twice. It changes nothing and decides nothing about regions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, has_tags
from thunder.core.trace import TraceCtx
from thunder.extend import Executor

from thunder_npu.executors.lowering import ELEMENTWISE, Refusal, Step, steps, torch_dtype
from thunder_npu.kernels.region import SOFTMAX, SOFTMAX_BACKWARD

SEEDS = (*SOFTMAX, *SOFTMAX_BACKWARD)
_PRODUCTS = ("matmul", "bmm", "baddbmm", "linear")
_SAME_SHAPE = ("to", "clone", "shallow_copy", "convert_element_type", "contiguous")
_VIEW_NAMES = ("unsqueeze", "expand", "reshape", "squeeze", "permute", "transpose")
HOUSEKEEPING = (
    "python_del", "python_return", "unpack_trivial", "unpack_sequence", "clear_mutable_collection",
)  # fmt: skip
IN_PLACE = ("copy_", "update_aliases", "copy_with_setitem")


class Graph:
    """Who makes and who reads what in a trace, and what each symbol is to a region. Symbols go by their position."""

    def __init__(self, trace: TraceCtx, executor: Executor) -> None:
        self.executor = executor
        self.bsyms = list(trace.bound_symbols)
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = defaultdict(list)
        self.parents: list[list[int]] = []
        self.children: list[list[int]] = [[] for _ in self.bsyms]
        self.segment: list[int] = []
        self.region_of: dict[int, int] = {}
        self.members: list[list[int]] = []
        self._steps: dict[int, list[Step] | Refusal] = {}
        self._free: dict[int, bool] = {}
        self.mistyped: set[str] = set()
        self.misshaped: set[str] = set()
        barriers = 0
        last_random: int | None = None
        for i, bsym in enumerate(self.bsyms):
            parents = []
            for p in bsym.flat_proxy_args:
                self.readers[p.name].append(i)
                if p.name in self.maker:
                    parents.append(self.maker[p.name])
            if self.is_random(i):
                # Random numbers are drawn in the order of the trace.
                if last_random is not None:
                    parents.append(last_random)
                last_random = i
            self.parents.append(sorted(set(parents)))
            for p in bsym.flat_proxy_outs:
                self.maker.setdefault(p.name, i)
            self._note_labels(bsym)
        for i, bsym in enumerate(self.bsyms):
            in_place = bsym.sym.name in IN_PLACE or has_tags(bsym, {prims.OpTags.IN_PLACE})
            if in_place and self.is_dead_update(i):
                # Whoever reads the old value does so before.
                seen = bsym.flat_proxy_args[-1].name
                self.parents[i] = sorted({*self.parents[i], *(r for r in self.readers[seen] if r < i)})
                in_place = False
            barriers += in_place
            self.segment.append(barriers)
            barriers += in_place
        for i, makers in enumerate(self.parents):
            for p in makers:
                self.children[p].append(i)

    def is_random(self, i: int) -> bool:
        bsym = self.bsyms[i]
        return has_tags(bsym, {prims.OpTags.RANDOM_OP}) or bsym.sym.name in ("uniform", "uniform_philox", "bernoulli")

    def is_dead_update(self, i: int) -> bool:
        """Whether symbol `i` belongs to an in-place update of a tensor that nothing else sees: only the value counts.

        T5 adds its position bias in place: ``scores += bias`` is an ``update_aliases`` of the matmul's result, an add,
        and a ``copy_`` of the sum into the result.
        """
        bsym = self.bsyms[i]
        if bsym.sym.name == "update_aliases":
            return self._is_private(bsym.flat_proxy_outs[0].name, {i}) if len(bsym.flat_proxy_outs) == 1 else False
        if bsym.sym.name != "copy_" or not isinstance(bsym.args[1], TensorProxy):
            return False
        source, target = bsym.args[:2]
        same = source.shape == target.shape and source.dtype == target.dtype
        return same and self._is_private(target.name, {i}, before=i)

    def _is_private(self, name: str, updates: set[int], before: int | None = None) -> bool:
        """Whether tensor `name` has memory of its own that is read only (before symbol `before`, and) as a value."""
        maker = self.maker.get(name)
        if maker is None:
            return False
        for reader in self.readers[name]:
            dead = reader in updates or (before is not None and reader < before and self.computes(reader))
            updates_it = self.bsyms[reader].sym.name == "copy_" and self.bsyms[reader].args[1].name == name
            if not dead and not (before is None and (self.computes(reader) or updates_it)):
                return False
        bsym = self.bsyms[maker]
        if bsym.sym.name == "update_aliases":
            inner = bsym.flat_proxy_args[0].name
            return len(bsym.flat_proxy_args) == 1 and self._is_private(inner, {maker}, before=maker)
        return bsym.sym.name in _PRODUCTS or self.computes(maker)

    def computes(self, i: int) -> bool:
        """Whether symbol `i` does arithmetic that a region could do, into memory of its own."""
        try:
            return not all(step.is_view for step in self.steps(i))
        except Refusal:
            return False

    def is_backward(self, i: int) -> bool:
        return BoundSymbolTag.BACKWARD in self.bsyms[i].tags

    def _note_labels(self, bsym: BoundSymbol) -> None:
        """Two faults of Thunder 0.2.6, of which a kernel would make wrong memory accesses.

        It calls the count of a row's maxima (amax's gradient) a boolean, which is an int64 tensor. And it forgets the
        sum in the gradient of a 0-d operand on the CPU, which it does not broadcast: what it then calls 0-d, and what
        is computed from that, has elements.
        """
        args, outs = bsym.flat_proxy_args, [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]
        name = bsym.sym.name
        if len(args) == 1 == len(outs) and isinstance(args[0], TensorProxy):
            (a,), (out,) = args, outs
            if name in _VIEW_NAMES and (a.dtype != out.dtype or a.name in self.mistyped):
                self.mistyped.add(out.name)
            same = out.ndim > a.ndim if name == "unsqueeze" else tuple(a.shape) == tuple(out.shape)
            if name in (*_SAME_SHAPE, "unsqueeze") and not same:
                self.misshaped.add(out.name)
        if any(a.name in self.misshaped for a in args) or self._forgets_elements(bsym):
            self.misshaped |= {out.name for out in outs}

    def _forgets_elements(self, bsym: BoundSymbol) -> bool:
        """Whether an elementwise result is called 0-d although an operand is not."""
        if not any(p.ndim == 0 for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)):
            return False
        try:
            found = steps(bsym, f"{self.executor.name}_")
        except Refusal:
            return False
        return any(s.op in ELEMENTWISE.values() and s.out.ndim == 0 and any(t.ndim for t in s.tensors) for s in found)

    def steps(self, i: int) -> list[Step]:
        """What symbol `i` does to rows. Raises Refusal."""
        if i not in self._steps:
            try:
                self._steps[i] = self._read(i)
            except Refusal as refusal:
                self._steps[i] = refusal
        found = self._steps[i]
        if isinstance(found, Refusal):
            raise found
        return found

    def _read(self, i: int) -> list[Step]:
        bsym = self.bsyms[i]
        if bsym.sym.is_fusion:
            raise Refusal(f"{bsym.sym.name} is a fusion already")
        if bsym.sym.name in IN_PLACE and not self.is_dead_update(i):
            raise Refusal(f"{bsym.sym.name} changes a tensor in place that something else sees")
        wrong = [p.name for p in bsym.flat_proxy_args if p.name in self.mistyped]
        wrong += [p.name for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs) if p.name in self.misshaped]
        if wrong:
            raise Refusal(f"Thunder takes {wrong[0]} for another dtype or shape than it has")
        found = steps(bsym, f"{self.executor.name}_")
        if not found:
            raise Refusal(f"{bsym.sym.name} computes nothing")
        drawn = any(self.is_random(p) for p in self.parents[i])
        if drawn and any(torch_dtype(step.out) == torch.bool for step in found):
            raise Refusal(f"{bsym.sym.name} draws a random mask, which is never computed twice")
        devices = {p.device.type for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs) if p.ndim}
        if len(devices) > 1:
            raise Refusal(f"{bsym.sym.name} moves tensors between devices")
        return found

    def is_seed(self, i: int) -> bool:
        bsym = self.bsyms[i]
        name = bsym.sym.name
        if bsym.sym.executor != self.executor or bsym.sym.is_fusion or not isinstance(name, str):
            return False
        try:
            return any(step.op in SEEDS for step in self.steps(i))
        except Refusal:
            return False

    def is_free(self, i: int) -> bool:
        """Whether symbol `i` comes from constants and indices alone, so that any region can make its own."""
        if i not in self._free:
            self._free[i] = False
            try:
                made = self.steps(i)
                inputs = self.bsyms[i].flat_proxy_args
                self._free[i] = all(p.name in self.maker and self.is_free(self.maker[p.name]) for p in inputs)
                self._free[i] &= not any(step.op in SEEDS for step in made)
            except Refusal:
                pass
        return self._free[i]

    def cone(self, i: int) -> set[int]:
        """Symbol `i` and, if it is free, what it is made of."""
        if not self.is_free(i):
            return {i}
        return {i}.union(*(self.cone(self.maker[p.name]) for p in self.bsyms[i].flat_proxy_args))

    def group(self, i: int) -> Sequence[int]:
        """The symbols that run together with `i`."""
        return self.members[self.region_of[i]] if i in self.region_of else (i,)

    def is_convex(self, members: set[int]) -> bool:
        """Whether no path leaves `members` and comes back, with the regions found so far taken as single symbols.

        Regions that are found one after the other, each convex in this sense, cannot depend on each other in a circle:
        what has none keeps none when a convex set in it becomes one symbol.
        """
        # A path goes up in the trace, or from a region's last symbol back to its first. Beyond `last` no region spans
        # back to it, so that no path returns from there.
        last = max(members)
        while (further := max((r[-1] for r in self.members if r[0] <= last), default=last)) > last:
            last = further
        seen: set[int] = set()
        ahead = [c for m in members for c in self.children[m] if c not in members]
        while ahead:
            i = ahead.pop()
            if i in members:
                return False
            if i not in seen and i <= last:
                group = self.group(i)
                seen.update(group)
                ahead += (c for g in group for c in self.children[g])
        return True


def changed_in_place(trace: TraceCtx, executor: Executor) -> set[str]:
    """Tensors that may share memory with one that a symbol of the trace (not of a region) updates in place."""
    updates = [b for b in trace.bound_symbols if b.sym.name in IN_PLACE or has_tags(b, {prims.OpTags.IN_PLACE})]
    if not updates:
        return set()
    graph = Graph(trace, executor)
    shares: dict[str, set[str]] = {}
    for i, bsym in enumerate(graph.bsyms):
        named = bsym.sym.name in (*_PRODUCTS, "embedding", *HOUSEKEEPING)
        region = bsym.sym.is_fusion and bsym.sym.executor == executor
        if not (named or region or graph.computes(i)):  # else it has memory of its own
            names = {p.name for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)}
            together = names.union(*(shares.get(name, ()) for name in names))
            shares |= dict.fromkeys(together, together)
    return {name for b in updates for p in b.flat_proxy_args for name in shares.get(p.name, {p.name})}
