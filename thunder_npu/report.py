"""explain(): which symbol went to which executor, which regions were fused, which rewrites were done, and why.

Read from the traces of a compiled function after a call; nothing is computed or compiled here.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import thunder
import torch
from rich.console import Console
from rich.table import Table
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_npu import options, routing
from thunder_npu.executors.attention import describe as describe_attention
from thunder_npu.executors.fusion import RegionInfo, regions
from thunder_npu.executors.softmax_family import COMPARE, describe, routing_options
from thunder_npu.transforms import Decision, decisions

_OURS = re.compile(rf"^({routing.ACLNN}|{routing.TRITON_ASCEND})_(\w+)$")
_ATEN = re.compile(r"^(?:torch\.ops\.aten\.)?_?(safe_softmax|softmax|log_softmax|log_softmax_backward_data|cat|stack)$")


@dataclass(frozen=True)
class Row:
    """One softmax-family, cat/stack or attention symbol of a final trace.

    Attributes:
        function: index of the compiled function (thunderfx compiles several; thunder.jit one).
        trace: "forward" or "backward".
        symbol: the name that the trace prints; a fused region is named before it, as in "TritonAscend0: softmax".
        op: the operation: "softmax", "log_softmax_backward", "cat", "attention", …
        shape, dtype, device: of the first tensor argument, dtype as Thunder prints it ("f32").
        width: length of the reduced axis of a softmax; None if it is symbolic or the op reduces nothing.
        executor: name of the executor that runs the symbol.
        reason: why it went there.
        path: "device" for npu and cuda tensors, "reference" where one of our executors runs ATen's CPU kernel, "cpu"
            for anything else on a CPU.
    """

    function: int
    trace: str
    symbol: str
    op: str
    shape: tuple[int | str, ...]
    dtype: str
    device: str
    width: int | None
    executor: str
    reason: str
    path: str


@dataclass(frozen=True)
class Report:
    """What :func:`explain` found. ``str()`` gives tables; ``rows``, ``regions`` and ``rewrites`` are plain data."""

    symbols: list[Row] = field(default_factory=list)
    fused: list[RegionInfo] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Options that leave regions out, and what thunderfx left to others than Thunder: a sentence each."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict per symbol, with the fields of :class:`Row`."""
        return [asdict(row) for row in self.symbols]

    @property
    def regions(self) -> list[dict[str, Any]]:
        """A dict per fused region, with the fields of ``executors.fusion.RegionInfo``, its Triton source among them."""
        return [asdict(region) for region in self.fused]

    @property
    def rewrites(self) -> list[dict[str, Any]]:
        """A dict per rewrite done or declined, with the fields of ``transforms.Decision``."""
        return [asdict(decision) for decision in self.decisions]

    def to_json(self) -> str:
        """Rows, regions, rewrites and notes as a JSON object of four lists."""
        found = {"rows": self.rows, "regions": self.regions, "rewrites": self.rewrites, "notes": self.notes}
        return json.dumps(found, indent=1, default=str)

    def to_html(self) -> str:
        """The tables of ``str()`` as one HTML page."""
        console = self._print(record=True)
        return console.export_html()

    def __str__(self) -> str:
        out = self._print(record=False).file
        assert isinstance(out, io.StringIO)
        return out.getvalue().rstrip("\n")

    def _print(self, *, record: bool) -> Console:
        # No markup: a shape like [i0, i1] would be read as a style.
        console = Console(file=io.StringIO(), width=160, record=record, markup=False)
        table = Table(title="symbols")
        for name in ("trace", "symbol", "shape", "dtype", "width", "executor", "path", "reason"):
            table.add_column(name, justify="right" if name == "width" else "left")
        several = len({row.function for row in self.symbols}) > 1
        for row in self.symbols:
            trace = f"{row.trace} {row.function}" if several else row.trace
            shape = "×".join(map(str, row.shape)) or "scalar"
            width = "" if row.width is None else str(row.width)
            table.add_row(trace, row.symbol, shape, row.dtype, width, row.executor, row.path, row.reason)
        console.print(table)
        if self.fused:
            table = Table(
                "region", "rows × width", "reads", "writes", "bytes, of unfused", "why it ends", title="regions"
            )
            for r in self.fused:
                moved = r.bytes_read + r.bytes_written
                reads, writes = (" ".join(name for name, *_ in side) for side in (r.inputs, r.outputs))
                share = f"{moved:,} ({moved / r.bytes_unfused:.0%})"
                table.add_row(r.name, f"{r.rows} × {r.width}", reads, writes, share, "\n".join(r.ends))
            console.print(table)
        if self.decisions:
            table = Table("transform", "done", "where", "reason", title="rewrites")
            for d in self.decisions:
                table.add_row(d.transform, "yes" if d.done else "no", d.line, d.reason)
            console.print(table)
        for note in self.notes:
            console.print(note)
        return console


def explain(compiled: Callable[..., Any]) -> Report:
    """What the last call of ``compiled`` ran where, and why.

    ``compiled`` is what ``thunder.jit``, ``thunder.compile`` or ``thunder.dynamo.thunderfx`` returned.

    Raises:
        TypeError: it is none of these, or it has not been called yet.
    """
    symbols: list[Row] = []
    fused: list[RegionInfo] = []
    rewrites: list[Decision] = []
    notes: dict[str, None] = {}
    for index, function in enumerate(_compiled_functions(compiled)):
        rewrites += decisions(function)
        for name in ("fusion", "fusion_fuel"):
            value = options.resolve(name, thunder.compile_data(function).compile_options)
            if value != options.OPTIONS[name].default:
                notes[f"{name}={value}: {options.OPTIONS[name].meaning}"] = None
        for direction, trace in _final_traces(function):
            fused += regions(trace)
            for bsym, region in _flat(trace.bound_symbols):
                row = _row(function, index, direction, bsym, region)
                if row is not None:
                    symbols.append(row)
    return Report(symbols, fused, rewrites, [*notes, *_left_outside(compiled)])


def _left_outside(compiled: Callable[..., Any]) -> Iterator[str]:
    """What thunderfx did not give to Thunder: which part of which graph, its operators, who runs it, and why."""
    backend = getattr(compiled, "_backend", None)
    for index, info in enumerate(backend.subgraph_infos if backend is not None else ()):
        if info.split_graph_module is None:
            continue
        reasons = dict.fromkeys(reason.info.split(", see exception field")[0] for reason in info.split_reasons or ())
        for name, piece in info.split_graph_module.named_children():
            if not name.startswith("inductor"):
                continue
            count = sum(node.op.startswith("call") for node in piece.graph.nodes)
            runner = "eager PyTorch" if isinstance(getattr(piece, "fn", piece), torch.fx.GraphModule) else "Inductor"
            yield f"graph {index}: {count} operators of {name} run by {runner}, since {'; '.join(reasons)}"


def _compiled_functions(compiled: Callable[..., Any]) -> list[Callable[..., Any]]:
    backend = getattr(compiled, "_backend", None)
    if backend is None:
        return [compiled]
    functions = [f for info in backend.subgraph_infos for f in info.thunder_compiled_fns or ()]
    if not functions:
        raise TypeError(f"{compiled!r} has not been called yet, or nothing in it was compiled by Thunder")
    return functions


def _final_traces(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    forward = thunder.last_traces(function)
    yield "forward", forward[-1]
    # On a cache hit Thunder moves last_traces to the entry that ran, but not last_backward_traces: ask the entry. With
    # cache="no caching" there is no entry and no hit, and the last backward traces are those of the last call.
    entries = thunder.compile_stats(function).interpreter_cache
    entry = next((e for e in entries if e.computation_traces is forward), None)
    backward = thunder.last_backward_traces(function) if entry is None else entry.backward_traces
    if backward:
        yield "backward", backward[-1]


def _flat(bsyms: list[BoundSymbol]) -> Iterator[tuple[BoundSymbol, BoundSymbol | None]]:
    """Every symbol of a final trace with the fused region that holds it, if one does."""
    for bsym in bsyms:
        if bsym.sym.is_fusion:
            yield from ((inner, bsym) for inner in bsym.subsymbols)
        else:
            yield bsym, None


def _operation(name: str) -> str | None:
    if match := _OURS.match(name):
        return match[2]
    if match := _ATEN.match(name):
        return match[1].removesuffix("_data")
    return "attention" if "scaled_dot_product" in name or "sdpa" in name else None


def _row(
    function: Callable[..., Any], index: int, direction: str, bsym: BoundSymbol, region: BoundSymbol | None
) -> Row | None:
    op = _operation(bsym.sym.name)
    tensors = [a for a in bsym.flat_args if isinstance(a, TensorProxy)]
    if op is None or not tensors:
        return None
    runner = (region or bsym).sym.executor
    executor = "torch" if runner is None else str(runner.name)
    a = tensors[0]
    softmax, reason = _why(function, bsym, op, a, executor)
    on_cpu = a.device.type == "cpu"
    return Row(
        function=index,
        trace=direction,
        symbol=bsym.sym.name if region is None else f"{region.sym.name}: {bsym.sym.name}",
        op=op,
        shape=tuple(n.name if isinstance(n, NumberProxy) else n for n in a.shape),
        dtype=a.dtype.shortname(),
        device=str(a.device.device_str()),
        width=None if softmax is None or softmax.symbolic else softmax.width,
        executor=executor,
        reason=reason,
        path=("reference" if executor in (routing.ACLNN, routing.TRITON_ASCEND) else "cpu") if on_cpu else "device",
    )


def _why(
    function: Callable[..., Any], bsym: BoundSymbol, op: str, a: TensorProxy, executor: str
) -> tuple[routing.Softmax | None, str]:
    """The softmax that ``bsym`` computes, as routing sees it, and why it went where it is."""
    forward = op.removesuffix("_backward")
    if forward not in routing.OPS:
        decided = [tag.reason for tag in bsym.tags if isinstance(tag, Decision)]
        operands = [p.name for p in bsym.flat_proxy_args]
        if forward == "attention":
            attention = describe_attention(*bsym.args[:6])
            claim = None if attention is None else routing.claim_attention(attention).reason
            return None, "; ".join([*decided, *([claim] if claim and op == forward else [])])
        if decided:
            return None, "; ".join(decided)
        return None, "different tensors" if len(set(operands)) == len(operands) else "no RepeatCat has looked at it"
    data = thunder.compile_data(function)
    options = routing_options(data.compile_options)
    arguments = [*bsym.args[1:], *bsym.kwargs.values()]
    dim = next(x for x in arguments if type(x) is int)
    dtype = next((x for x in arguments if isinstance(x, (torch.dtype, thunder.dtypes.dtype))), None)
    softmax = describe(forward, a, dim, None if op != forward else dtype, data.executors_list)
    if softmax is None:
        return None, ""
    order = [str(ex.name) for ex in data.executors_list if ex.name in (routing.ACLNN, routing.TRITON_ASCEND)]
    if not order:
        return softmax, f"neither {routing.ACLNN} nor {routing.TRITON_ASCEND} is in the list of executors"
    route = routing.route(softmax, options, order)
    if route.executor not in (None, executor):
        return softmax, f"taken before {route.executor} was asked"
    checked = [b for b in thunder.last_prologue_traces(function)[-1].bound_symbols if b.sym.id == COMPARE.id]
    if softmax.symbolic and a._shape[dim].name in {b.args[0].name for b in checked}:
        return softmax, f"{route.reason}; a call on the other side is traced anew"
    return softmax, route.reason
