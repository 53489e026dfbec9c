"""The fusion pass of the executor "triton_ascend": regions of a trace around softmax rows, one Triton kernel each.

    t1 = torch.mul(scores, 0.125)                      [t4] = TritonAscend0(mask, scores)
    t2 = torch.add(t1, mask)                    →        # t1 = torch.mul(scores, 0.125)
    t3 = triton_ascend_softmax(t2, -1)                   # t2 = torch.add(t1, mask)
    t4 = Tensor.to(t3, torch.bfloat16)                   # t3 = triton_ascend_softmax(t2, -1)
                                                         # t4 = Tensor.to(t3, torch.bfloat16)

A region starts at a softmax that this executor has claimed and takes in producers and consumers as long as they work on
the same rows. It runs after all symbols have been claimed: a symbol outside of every region stays with the executor
that claimed it (or is still there for the fusion executors behind this one), as if this pass were not. Never taken in:

- what :mod:`lowering` cannot express on rows (a matmul, a softmax that aclnn claimed, a reduction over other axes);
- symbols of the backward into a forward region and the other way round, and anything across an in-place update;
- random numbers and the masks drawn from them: they are read, and never computed twice;
- what would make a path leave the region and come back (regions are convex), or the tile outgrow the unified buffer;
- a smaller tensor (a mask of [B, 1, 1, S]) that something outside also needs. Constants and arange comparisons are the
  exception: they cost nothing, so every region makes its own from indices and no causal mask is read from memory.

A view inside is relabelling. One that something outside needs stands behind the region once more, of what the region
reads or writes, so that it shares memory as in eager.

Afterwards Thunder's rematerialisation moves what the backward can recompute cheaply out of the saved tensors, and a
float32 softmax is computed again rather than saved where what it comes from is smaller (half-type scores).
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.compile_data import _compile_data
from thunder.core.devices import to_torch_device
from thunder.core.proxies import Proxy, TensorProxy, unvariableify, variableify
from thunder.core.rematerialization import rematerialize
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx
from thunder.core.transform_common import dce
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torch_ex
from thunder.extend import FusionExecutor, OperatorExecutor

from thunder_npu import options
from thunder_npu.executors.gradient_rules import GradientRules
from thunder_npu.executors.graph import HOUSEKEEPING, IN_PLACE, SEEDS, Graph, changed_in_place
from thunder_npu.executors.lowering import IN_MEMORY, VIEWS, Lowered, Lowering, Refusal, Step, steps, torch_dtype
from thunder_npu.kernels import codegen, target_of
from thunder_npu.kernels.region import COLUMN, SOFTMAX, Tensor
from thunder_npu.kernels.region_kernel import DEFAULT_TARGET, RegionKernel

FUSION_NAME = "TritonAscend"


class TritonAscendExecutor(GradientRules, OperatorExecutor, FusionExecutor):
    """Claims single symbols as an operator executor does, then fuses around them."""

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether Thunder may move `bsym` into this executor's regions: only what the executor claims itself."""
        return not bsym.sym.is_fusion and self.can_execute(bsym)

    def fuse(self, region: Any, fusion_counter: int) -> BoundSymbol:
        """The bound symbol ``TritonAscend<fusion_counter>`` of a region.

        Args:
            region: has ``inputs`` and ``outputs`` (variables) and ``bound_symbols``, as Thunder's own regions do.
            fusion_counter: number in the name.

        Raises:
            Refusal: the region cannot be expressed on rows.
        """
        inputs = [unvariableify(v) for v in region.inputs]
        outputs = [unvariableify(v) for v in region.outputs]
        bsyms = tuple(region.bound_symbols)
        name = f"{FUSION_NAME}{fusion_counter}"
        call = FusedRegion(name, lower(bsyms, outputs, self), inputs, outputs, bsyms)
        symbol = Symbol(name, meta=None, is_fusion=True, executor=self)
        return BoundSymbol(symbol, inputs, {}, outputs, bsyms, _call_ctx={name: call})

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """The trace with its regions fused; the trace itself if there is none."""
        fuel = _fuel_left()
        if not options.get("fusion") or fuel == 0:
            return trace
        start = time.perf_counter_ns()
        graph = Graph(trace, self)
        groups = find_regions(graph, fuel)
        if not groups:
            return trace
        _burn(len(groups))
        fused = from_trace(trace)
        fused.bound_symbols = _schedule(graph, groups, fused)
        fused = self._recompute_softmax(self._rematerialized(dce(fused)))
        milliseconds = (time.perf_counter_ns() - start) // 1_000_000
        fused.set_provenance(TraceProvenance(f"Fusion of softmax rows (took {milliseconds} milliseconds)"))
        return fused

    def _rematerialized(self, trace: TraceCtx) -> TraceCtx:
        """Thunder's rematerialisation, unless a region that it enlarges no longer fits."""
        before = {b.sym.name: b for b in trace.bound_symbols if is_region(b)}
        candidate = rematerialize(trace)
        result = from_trace(candidate)
        for bsym in candidate.bound_symbols:
            known = before.get(bsym.sym.name)
            if known is not None and bsym is not known:
                try:
                    bsym = self.fuse(_Parts(bsym.args, bsym.output, bsym.subsymbols), _counter(bsym))
                except Refusal:
                    return trace
                if _unfit(bsym._call_ctx[bsym.sym.name].lowered):
                    return trace
            result.bound_symbols.append(bsym)
        return dce(result)

    def _recompute_softmax(self, trace: TraceCtx) -> TraceCtx:
        """Float32 softmax results that nothing but one backward region reads, made there again from smaller tensors.

        ``softmax(scores, dtype=float32).to(bfloat16)`` keeps four bytes per element for its backward, beside the result
        that the next matmul keeps anyway; two bytes of scores say the same. The forward then writes, the backward
        reads, and training holds, that much less. (Thunder's own rematerialisation never repeats a reduction.)
        """
        symbols = list(trace.bound_symbols)
        changed = changed_in_place(trace, self)
        readers: dict[str, list[int]] = defaultdict(list)
        maker = {p.name: i for i, b in enumerate(symbols) if is_region(b) for p in b.output}
        for i, bsym in enumerate(symbols):
            for p in bsym.flat_proxy_args:
                readers[p.name].append(i)
        for i, consumer in enumerate(symbols):
            backward = is_region(consumer) and any(BoundSymbolTag.BACKWARD in b.tags for b in consumer.subsymbols)
            for p in consumer.args if backward else ():
                if p.name not in maker or readers[p.name] != [i] or torch_dtype(p) != torch.float32:
                    continue
                producer = symbols[maker[p.name]]
                larger = self._with_producers_of(p, producer, symbols[i])
                if larger is not None and changed.isdisjoint(a.name for a in larger.args):
                    rest = [out for out in producer.output if out.name != p.name]
                    smaller = self.fuse(_Parts(producer.args, rest, producer.subsymbols), _counter(producer))
                    if not _unfit(smaller._call_ctx[smaller.sym.name].lowered):
                        symbols[maker[p.name]], symbols[i] = smaller, larger
        result = from_trace(trace)
        result.bound_symbols = symbols
        return result

    def _with_producers_of(self, p: TensorProxy, producer: BoundSymbol, consumer: BoundSymbol) -> BoundSymbol | None:
        """Region `consumer` making `p` as `producer` does; None if it would not read less, or not fit."""
        needed = {p.name}
        inside: list[BoundSymbol] = []
        for bsym in reversed(producer.subsymbols):
            if any(out.name in needed for out in bsym.flat_proxy_outs):
                inside.insert(0, bsym)
                needed |= {a.name for a in bsym.flat_proxy_args}
        if not any(step.op in SOFTMAX for b in inside for step in steps(b, f"{self.name}_")):
            return None
        made = {out.name for b in inside for out in b.flat_proxy_outs}
        kept = [a for a in consumer.args if a.name not in made]
        more = [a for a in producer.args if a.name in needed - {k.name for k in kept}]
        if len(producer.output) == 1 or sum(map(_bytes, more)) >= _bytes(p):
            return None
        rest = [b for b in consumer.subsymbols if not {out.name for out in b.flat_proxy_outs} <= made]
        try:
            larger = self.fuse(_Parts([*kept, *more], consumer.output, [*inside, *rest]), _counter(consumer))
        except Refusal:
            return None
        return None if _unfit(larger._call_ctx[larger.sym.name].lowered) else larger


@dataclass(frozen=True)
class _Parts:
    """What :meth:`TritonAscendExecutor.fuse` reads of a region."""

    args: Sequence[Proxy]
    output: Sequence[Proxy]
    bound_symbols: Sequence[BoundSymbol]

    @property
    def inputs(self) -> list[Any]:
        return [variableify(p) for p in self.args]

    @property
    def outputs(self) -> list[Any]:
        return [variableify(p) for p in self.output]


def is_region(bsym: BoundSymbol) -> bool:
    """Whether `bsym` is one of this executor's fused regions."""
    return bool(bsym.sym.is_fusion) and isinstance(bsym.sym.executor, TritonAscendExecutor)


def _bytes(p: TensorProxy) -> int:
    return prod(p.shape) * torch_dtype(p).itemsize


def _counter(bsym: BoundSymbol) -> int:
    return int(bsym.sym.name.removeprefix(FUSION_NAME))


def lower(bsyms: Iterable[BoundSymbol], outputs: Sequence[TensorProxy], executor: TritonAscendExecutor) -> Lowered:
    """The region that `bsyms` are.

    Raises:
        Refusal: they are none; the text says why.
    """
    body = [step for bsym in bsyms for step in steps(bsym, f"{executor.name}_")]
    inside = bool(options.get("fusion_float32_inside"))
    return Lowering(body, outputs, float32_inside=inside).result()


# ---- running a region ------------------------------------------------------------------------------------------------
class FusedRegion:
    """What a fused line calls: the region's kernel on npu and cuda tensors, its own symbols on CPU tensors."""

    def __init__(
        self,
        name: str,
        lowered: Lowered,
        inputs: Sequence[TensorProxy],
        outputs: Sequence[TensorProxy],
        bsyms: Sequence[BoundSymbol],
    ) -> None:
        self.name = name
        self.lowered = lowered
        self.kernel = RegionKernel(lowered.region, name)
        position = {proxy.name: i for i, proxy in enumerate(inputs)}
        self.reads = tuple(position[proxy.name] for proxy in lowered.inputs)
        self.writes = tuple(lowered.outputs[proxy.name] for proxy in outputs)
        self.on_device = any(p.device.type != "cpu" for p in inputs)
        self.reference = None if self.on_device else _reference(inputs, outputs, bsyms)

    def __call__(self, *arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        if self.reference is not None:
            results: Sequence[torch.Tensor] = self.reference(*arguments)
            return results
        return self.run_kernel(*arguments)

    def run_kernel(self, *arguments: torch.Tensor) -> list[torch.Tensor]:
        """The kernel, whatever the device; on CPU tensors it needs Triton's driver of the virtual NPU."""
        written = self.kernel(*(arguments[i] for i in self.reads))
        return [written[i] for i in self.writes]


def _reference(
    inputs: Sequence[TensorProxy], outputs: Sequence[TensorProxy], bsyms: Sequence[BoundSymbol]
) -> Callable[..., Any]:
    """The region's symbols by Thunder's torch executor: the reference path."""
    trace = TraceCtx(None)
    trace.args = tuple(inputs)
    trace.kwargs = {}
    trace._siginfo = SigInfo("region")
    trace._siginfo.args = [(a.name, None) for a in inputs]
    trace.names = {a.name for a in inputs}
    with tracectx(trace):
        for a in inputs:
            prims.unpack_trivial(a, name=a.name)
    for bsym in bsyms:
        if bsym.sym.name == "copy_":  # no kernel updates its target either, which the backward may read
            bsym = prims.shallow_copy.bind(bsym.args[0], output=bsym.flat_proxy_outs[0])
        trace.names |= {p.name for b in (bsym, *bsym.subsymbols) for p in b.flat_proxy_outs}
        trace.bound_symbols.append(bsym)
    trace.bound_symbols.append(prims.python_return.bind(list(outputs), output=None))
    callable_: Callable[..., Any] = transform_for_execution(trace, (torch_ex,)).python_callable(
        include_decorators=False
    )
    return callable_


# ---- growing ---------------------------------------------------------------------------------------------------------
class Growth:
    """A region while it grows from one softmax."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.seed = seed
        self.members = {seed}
        self.free: set[int] = set()
        step = next(s for s in graph.steps(seed) if s.op in SEEDS)
        self.elements = prod(step.out.shape)
        self.width = step.out.shape[-1] if step.out.ndim else 1
        self.rows = self.elements // max(1, self.width)

    # ---- what may join
    def check(self, i: int) -> None:
        """Raises Refusal with the reason why symbol `i` cannot join, as far as that shows without lowering."""
        graph = self.graph
        if i in graph.region_of:
            raise Refusal(f"{graph.bsyms[i].sym.name} is in another region")
        graph.steps(i)
        if graph.is_free(i):
            return
        if graph.is_backward(i) != graph.is_backward(self.seed):
            raise Refusal(
                f"{graph.bsyms[i].sym.name} belongs to the {'backward' if graph.is_backward(i) else 'forward'}"
            )
        if graph.segment[i] != graph.segment[self.seed]:
            raise Refusal(f"an in-place update lies between it and {graph.bsyms[i].sym.name}")
        outs = graph.bsyms[i].flat_proxy_outs
        needed_outside = any(reader not in self.members for p in outs for reader in graph.readers[p.name])
        spans_rows = all(prod(p.shape) in (self.elements, self.rows) for p in outs)
        if needed_outside and not spans_rows:
            raise Refusal(f"{graph.bsyms[i].sym.name} is smaller than the rows and used elsewhere too")
        if any(torch_dtype(p) not in IN_MEMORY for p in outs if needed_outside):
            raise Refusal(f"{graph.bsyms[i].sym.name} gives integers")
        if not graph.is_convex(self.members | {i}):
            raise Refusal(f"{graph.bsyms[i].sym.name} depends on the region through something outside of it")

    def _feeds(self, i: int) -> bool:
        return any(child in self.members for child in self.graph.children[i])

    def neighbours(self) -> list[int]:
        """Makers of the region's inputs, last first, then readers of its outputs, first first."""
        graph, inside = self.graph, self.members | self.free
        makers = {p for i in inside for p in graph.parents[i]} - inside
        readers = {
            r for i in self.members for p in graph.bsyms[i].flat_proxy_outs for r in graph.readers[p.name]
        } - inside
        return sorted(makers, reverse=True) + sorted(readers - makers)

    def add(self, i: int) -> None:
        if self.graph.is_free(i):
            self.free |= self.graph.cone(i)
        else:
            self.members.add(i)

    # ---- growing
    def grow(self, accept: Callable[[], bool]) -> None:
        """Takes in neighbours until none can join; `accept` is asked after each, which is put back if it says no."""
        refused: set[int] = set()
        while True:
            before = (set(self.members), set(self.free))
            for i in self.neighbours():
                if i in refused:
                    continue
                try:
                    self.check(i)
                except Refusal:
                    continue
                members, free = set(self.members), set(self.free)
                self.add(i)
                if not accept():
                    self.members, self.free = members, free
                    refused.add(i)
            if (self.members, self.free) == before:
                return

    def prune(self) -> None:
        """Drops views of results that nothing inside reads: outside they cost nothing, here they would be written."""
        graph = self.graph
        while True:
            loose = {i for i in self.members if i != self.seed and _is_view(graph.steps(i)) and not self._feeds(i)}
            if not loose:
                return
            self.members -= loose

    def shed(self) -> None:
        """Leaves outside what grew in and costs less there."""
        self.prune()
        self.shed_for_short_rows()

    def shed_for_short_rows(self) -> None:
        """Leaves outside what makes a column (a value a row) of other columns: the broadcast can then be written out.

        Inside, it would be made of what is written out, in another shape than its own.
        """
        if not self.has_short_rows:
            return
        graph = self.graph
        while True:
            loose = {
                i
                for i in self.members
                if i != self.seed
                and all(s.out.ndim and s.out.shape[-1] == 1 for s in graph.steps(i))
                and not any(p in self.members for p in graph.parents[i])
            }
            if not loose:
                return
            self.members -= loose

    @property
    def has_short_rows(self) -> bool:
        """Whether rows are so short that a broadcast over them would run as scalar code (option realize_tail_bcast)."""
        return bool(options.get("realize_tail_bcast")) and 1 < self.width < options.get("tail_bcast_min_vec")

    def short_broadcasts(self) -> list[TensorProxy]:
        """Inputs that the region would spread over its short rows."""
        if not self.has_short_rows:
            return []
        spread = [p for p, tensor in zip(*self._inputs(), strict=True) if COLUMN not in tensor.places]
        return list({p.name: p for p in spread if p.ndim and p.shape[-1] == 1 and p.numel > 1}.values())

    def _inputs(self) -> tuple[Sequence[TensorProxy], Sequence[Tensor]]:
        lowered = self.lowered()
        return lowered.inputs, lowered.region.inputs

    # ---- what it is
    @property
    def indices(self) -> list[int]:
        return sorted(self.members | self.free)

    def views_outside(self) -> list[int]:
        """Members that are views of other memory and that something outside needs.

        Inside a view is relabelling, and nobody writes it: it is made again behind the region, of what the region
        writes or reads, and so shares that memory and has the strides that it has without us.
        """
        found: set[int] = set()
        for i in sorted(self.members, reverse=True):
            if self._shows_memory(i) and self._is_read_by_others(i, found):
                found.add(i)
        return sorted(found)

    def _shows_memory(self, i: int) -> bool:
        """Whether member `i` shows the memory of another tensor, not a value that the region computes."""
        made = self.graph.steps(i)
        if self.graph.bsyms[i].sym.name in IN_PLACE or not all(s.op in (*VIEWS.values(), "alias") for s in made):
            return False
        # An alias of what the region computes is that result itself, written once.
        return any(s.op != "alias" for s in made) or any(
            p not in self.members or self._shows_memory(p) for p in self.graph.parents[i]
        )

    def _is_read_by_others(self, i: int, views: set[int]) -> bool:
        graph = self.graph
        return any(
            reader not in self.members or reader in views
            for p in graph.bsyms[i].flat_proxy_outs
            if graph.maker[p.name] == i
            for reader in graph.readers[p.name]
        )

    def outputs(self) -> list[TensorProxy]:
        """What the region writes: what others read, or views outside show."""
        graph, views = self.graph, set(self.views_outside())
        return [
            p
            for i in sorted(self.members - views)
            for p in graph.bsyms[i].flat_proxy_outs
            if graph.maker[p.name] == i and any(r not in self.members or r in views for r in graph.readers[p.name])
        ]

    def lowered(self) -> Lowered:
        """Raises Refusal."""
        return lower([self.graph.bsyms[i] for i in self.indices], self.outputs(), self.graph.executor)

    def try_lower(self) -> Lowered | Refusal:
        """The lowered region, or why there is none."""
        try:
            lowered = self.lowered()
        except Refusal as refusal:
            return refusal
        reason = _unfit(lowered)
        return Refusal(reason) if reason else lowered

    @property
    def is_worthwhile(self) -> bool:
        """Whether something else than the softmax itself, and views, is inside."""
        working = [i for i in self.members if not all(s.is_view for s in self.graph.steps(i))]
        return len(working) > 1


def _is_view(made: Sequence[Step]) -> bool:
    """Whether the symbol costs nothing outside, but a tensor of its own inside. (An alias costs nothing inside.)"""
    return all(step.is_view for step in made) and any(step.op != "alias" for step in made)


def _unfit(lowered: Lowered) -> str | None:
    """Why the device of the region's tensors has no kernel for it; None if it has."""
    device = next((p.device for p in lowered.inputs if p.device.type != "cpu"), None)
    target = DEFAULT_TARGET if device is None else target_of(to_torch_device(device))
    return codegen.unfit(lowered.region, target)


def grow_region(graph: Graph, seed: int) -> Growth | None:
    """The region around softmax `seed`; None if nothing can join it."""
    growth = Growth(graph, seed)
    growth.grow(lambda: True)
    growth.shed()
    if growth.is_worthwhile and isinstance(growth.try_lower(), Refusal):
        # What looked as if it could join, together, cannot: take the neighbours in one by one.
        growth = Growth(graph, seed)
        if isinstance(growth.try_lower(), Refusal):
            return None
        growth.grow(lambda: isinstance(growth.try_lower(), Lowered))
        growth.shed()
        if isinstance(growth.try_lower(), Refusal):  # what is shed changes what is read and written
            return None
    return growth if growth.is_worthwhile else None


# For the option fusion_fuel, of each compiled function: its compilations, and the regions made in the last of them.
_burnt: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()


def _fuel_left() -> int | None:
    """How many more regions the option fusion_fuel allows in this compilation; None without a limit."""
    fuel = options.get("fusion_fuel")
    if fuel == options.UNLIMITED or _compile_data.get()[0] is None:
        return None
    data, stats = _compile_data.get()
    number, used = _burnt.get(data, (-1, 0))
    return max(0, fuel - (used if number == stats.cache_misses else 0))


def _burn(count: int) -> None:
    data, stats = _compile_data.get()
    if data is not None:
        number, used = _burnt.get(data, (-1, 0))
        _burnt[data] = (stats.cache_misses, count + (used if number == stats.cache_misses else 0))


def find_regions(graph: Graph, limit: int | None = None) -> list[Growth]:
    """All regions of a trace, in the order of their softmaxes; at most ``limit``."""
    regions: list[Growth] = []
    for i in range(len(graph.bsyms)):
        if limit is not None and len(regions) == limit:
            break
        if i in graph.region_of or not graph.is_seed(i):
            continue
        growth = grow_region(graph, i)
        if growth is None:
            continue
        members = sorted(growth.members)
        graph.region_of |= dict.fromkeys(members, len(graph.members))
        graph.members.append(members)
        regions.append(growth)
    return regions


# ---- the trace with its regions --------------------------------------------------------------------------------------
def _schedule(graph: Graph, regions: Sequence[Growth], trace: TraceCtx) -> list[BoundSymbol]:
    """The trace's symbols, every region one of them, each as early as the old order and its inputs allow."""
    unit_of = {i: members[0] for members in graph.members for i in members}
    waiting: dict[int, set[int]] = defaultdict(set)
    children: dict[int, set[int]] = defaultdict(set)
    units = sorted({unit_of.get(i, i) for i in range(len(graph.bsyms))})
    in_segment: dict[int, list[int]] = defaultdict(list)
    for unit in units:
        in_segment[graph.segment[unit]].append(unit)
    for i, parents in enumerate(graph.parents):
        unit = unit_of.get(i, i)
        for p in parents:
            parent = unit_of.get(p, p)
            if parent != unit:
                waiting[unit].add(parent)
                children[parent].add(unit)
    by_unit = {members[0]: region for members, region in zip(graph.members, regions, strict=True)}
    result: list[BoundSymbol] = []
    written_out: dict[str, TensorProxy] = {}
    number = 0
    for segment in sorted(in_segment):
        ready = [unit for unit in in_segment[segment] if not waiting[unit]]
        heapq.heapify(ready)
        left = len(in_segment[segment])
        while ready:
            unit = heapq.heappop(ready)
            left -= 1
            if unit in by_unit:
                result += _fused(graph, by_unit[unit], number, trace, written_out)
                number += 1
            else:
                result.append(graph.bsyms[unit])
            for child in children[unit]:
                waiting[child].discard(unit)
                if not waiting[child] and graph.segment[child] == segment:
                    heapq.heappush(ready, child)
        if left:
            raise RuntimeError(f"the fused regions depend on each other in a circle ({left} symbols left over)")
    return result


def _fused(
    graph: Graph, region: Growth, number: int, trace: TraceCtx, written_out: dict[str, TensorProxy]
) -> list[BoundSymbol]:
    """The fused symbol of a region, between the symbols that write short broadcasts out for it and its views."""
    bsyms = [graph.bsyms[i] for i in region.indices]
    before: list[BoundSymbol] = []
    swap: dict[Any, TensorProxy] = {}
    for proxy in region.short_broadcasts():
        if proxy.name not in written_out:
            trace.push_scope([])
            with tracectx(trace):
                spread = ltorch.expand(proxy, (*proxy.shape[:-1], region.width))
                written_out[proxy.name] = ltorch.contiguous(spread)
            made = trace.pop_scope()
            for bsym in made:
                bsym.tags |= graph.bsyms[region.seed].tags
            before += made
        swap[variableify(proxy)] = written_out[proxy.name]
    if swap:
        bsyms = [bsym.from_bsym_swap_proxies(swap, skip_output=True) for bsym in bsyms]
    made_inside = {p.name for bsym in bsyms for p in bsym.flat_proxy_outs}
    inputs = {p.name: p for bsym in bsyms for p in bsym.flat_proxy_args if p.name not in made_inside}
    parts = _Parts(list(inputs.values()), region.outputs(), bsyms)
    views = [graph.bsyms[i] for i in region.views_outside()]
    return [*before, graph.executor.fuse(parts, number), *views]


# ---- what the report tells of a region -------------------------------------------------------------------------------
@dataclass(frozen=True)
class RegionInfo:
    """One fused region of a trace, in plain data.

    ``inputs`` and ``outputs`` are (name, dtype, shape); bytes count every tensor once, unfused bytes once for every
    symbol that reads or writes it. ``ends`` says, for each symbol next to the region, why it is not inside.
    """

    name: str
    rows: int
    width: int
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    symbols: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    bytes_unfused: int
    ends: tuple[str, ...]
    on_device: bool
    source: str


def regions(trace: TraceCtx) -> list[RegionInfo]:
    """The fused regions of a trace that the executor has made, in order."""
    fused = [bsym for bsym in trace.bound_symbols if is_region(bsym)]
    if not fused:
        return []
    graph = _opened(trace, fused[0].sym.executor)
    return [_info(graph, number, bsym) for number, bsym in enumerate(fused)]


def _opened(trace: TraceCtx, executor: TritonAscendExecutor) -> Graph:
    """The graph of a trace with the symbols of every region in the region's place, each region a group of its own.

    What a backward region computes again has the names of the forward's: of these the first keeps them. Of a view that
    stands both inside and behind a region the one behind does.
    """
    opened = from_trace(trace)
    opened.names = set(opened.names)  # from_trace shares them: a second report would find this one's names taken
    opened.bound_symbols = []
    groups: list[list[int]] = []
    made: set[str] = set()
    outside_regions = {p.name for bsym in trace.bound_symbols if not is_region(bsym) for p in bsym.flat_proxy_outs}
    with tracectx(opened):
        for bsym in trace.bound_symbols:
            if bsym.sym.name in HOUSEKEEPING:
                continue
            if not is_region(bsym):
                opened.bound_symbols.append(bsym)
                made |= {p.name for p in bsym.flat_proxy_outs}
                continue
            outside = {p.name for p in (*bsym.args, *bsym.output)}
            again: dict[Any, Proxy] = {}
            first = len(opened.bound_symbols)
            for inner in bsym.subsymbols:
                for p in inner.flat_proxy_outs:
                    twice = p.name in made or p.name in outside_regions
                    if twice and p.name not in outside and variableify(p) not in again:
                        again[variableify(p)] = p.replace(name=f"{p.name}_in_{bsym.sym.name}")
                opened.bound_symbols.append(inner.from_bsym_swap_proxies(again) if again else inner)
                made |= {p.name for p in inner.flat_proxy_outs}
            groups.append([*range(first, len(opened.bound_symbols))])
    graph = Graph(opened, executor)
    graph.members = groups
    graph.region_of = {i: number for number, members in enumerate(groups) for i in members}
    return graph


def _info(graph: Graph, number: int, bsym: BoundSymbol) -> RegionInfo:
    call: FusedRegion = bsym._call_ctx[bsym.sym.name]
    region = call.lowered.region

    def described(proxies: Iterable[TensorProxy]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        return tuple((p.name, str(torch_dtype(p)).removeprefix("torch."), tuple(p.shape)) for p in proxies)

    working = [b for b in bsym.subsymbols if not _is_view(steps(b, f"{bsym.sym.executor.name}_"))]
    unfused = sum(
        prod(p.shape) * torch_dtype(p).itemsize
        for b in working
        for p in (*b.flat_proxy_args, *b.flat_proxy_outs)
        if isinstance(p, TensorProxy)
    )
    target = target_of(to_torch_device(bsym.output[0].device)) if call.on_device else DEFAULT_TARGET
    return RegionInfo(
        name=call.name,
        rows=region.rows,
        width=region.width,
        inputs=described(bsym.args),
        outputs=described(bsym.output),
        symbols=tuple(b.sym.name for b in bsym.subsymbols),
        bytes_read=region.bytes_read,
        bytes_written=region.bytes_written,
        bytes_unfused=unfused,
        ends=_ends(graph, number),
        on_device=call.on_device,
        source=call.kernel.source(target),
    )


def _ends(graph: Graph, number: int) -> tuple[str, ...]:
    """Why the symbols next to region ``number`` are not inside: what growing, tried once more, says of each."""
    inside = graph.members[number]
    growth = Growth(graph, [i for i in inside if graph.is_seed(i)][-1])  # before it, what a backward computes again
    growth.members = {i for i in inside if not graph.is_free(i)}
    growth.free = set(inside) - growth.members
    reasons: dict[str, None] = {}
    for i in growth.neighbours():
        try:
            growth.check(i)
        except Refusal as refusal:
            reasons[str(refusal)] = None
            continue
        larger = _with(growth, i).try_lower()
        if isinstance(larger, Refusal):
            reasons[f"{graph.bsyms[i].sym.name}: {larger}"] = None
    return tuple(reasons)


def _with(growth: Growth, i: int) -> Growth:
    """A copy of a region that has taken symbol `i` in."""
    larger = Growth(growth.graph, growth.seed)
    larger.members, larger.free = set(growth.members), set(growth.free)
    larger.add(i)
    return larger
