"""Bound symbols of a Thunder trace → the intermediate form of a fused region (kernels/region.py).

Symbols are read down to Thunder's prims, so that it does not matter which executor claimed a symbol before, or whether
one has. Values are lowered on demand, from the outputs back to the inputs, each for the *places* (what an index along a
dimension means for the rows) in which it is read; so reshapes, transposes and broadcasts only relabel, and one arange
can be a row number in one place and a column number in another. Whatever cannot be expressed raises :class:`Refusal`,
whose text is the reason that the report gives. Nothing here decides what should be fused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, isinf, prod
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_npu.kernels import region as ir
from thunder_npu.kernels.region import COLUMN, Node, Place, Region, Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
IN_MEMORY = (*FLOATS, torch.bool)
INTEGERS = (torch.int32, torch.int64)
INT32_MAX = 2**31 - 1

ELEMENTWISE = {
    **{getattr(PrimIDs, name.upper()): name for name in (*ir.UNARY, *ir.BINARY, *ir.COMPARISONS) if name != "sqrt"},
    PrimIDs.SQRT: "sqrt",
    PrimIDs.WHERE: "where",
    PrimIDs.CONVERT_ELEMENT_TYPE: "cast",
    PrimIDs.CLONE: "copy",
    PrimIDs.SHALLOW_COPY: "alias",
    PrimIDs.POW: "pow",
}
REDUCTIONS = {PrimIDs.SUM: "sum", PrimIDs.AMAX: "amax", PrimIDs.AMIN: "amin"}
VIEWS = {
    PrimIDs.BROADCAST_IN_DIM: "broadcast",
    PrimIDs.RESHAPE: "reshape",
    PrimIDs.VIEW: "reshape",
    PrimIDs.TRANSPOSE: "permute",
    PrimIDs.SQUEEZE: "squeeze",
}
CREATIONS = {PrimIDs.FULL: "full", PrimIDs.IOTA: "iota"}
# Thunder's torch executor has prims of its own for a few of Thunder's, with no subsymbols to read.
ALIASES = {
    "torch_div_prim_impl": PrimIDs.DIV,
    "torch_prims_reshape_impl": PrimIDs.RESHAPE,
    "shallow_copy": PrimIDs.SHALLOW_COPY,
}
OPERATIONS = {**ELEMENTWISE, **REDUCTIONS, **VIEWS, **CREATIONS}
ARITHMETIC = ("add", "sub", "mul", "div")
# Exponents whose power is a few multiplications or roots.
POWERS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0)


class Refusal(Exception):  # noqa: N818  (an answer, not an error)
    """Why something cannot be part of a region."""


@dataclass(frozen=True)
class Step:
    """One operation on proxies: `op` of the tables above, or a softmax family name ("softmax_backward", …)."""

    op: str
    out: TensorProxy
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[TensorProxy]:
        return [a for a in self.args if isinstance(a, TensorProxy)]

    @property
    def is_view(self) -> bool:
        """Whether it only relabels: what a copy or an alias shows is the value itself."""
        return self.op in VIEWS.values() or self.op in ("copy", "alias")


# ---- bound symbol → steps --------------------------------------------------------------------------------------------
def steps(bsym: BoundSymbol, family: str) -> list[Step]:
    """The operations that `bsym` consists of. `family` begins the names of our softmax operators ("triton_ascend_").

    Raises:
        Refusal: one of them has no place in a region.
    """
    found = list(_steps(bsym, family))
    for step in found:
        for proxy in (step.out, *step.tensors):
            _check(proxy)
    return found


def _steps(bsym: BoundSymbol, family: str) -> Iterator[Step]:
    identifier = ALIASES.get(bsym.sym.id, bsym.sym.id)
    name = bsym.sym.name
    if isinstance(identifier, str) and identifier.startswith(family):
        op = identifier.removeprefix(family)
        if op in (*ir.SOFTMAX, *ir.SOFTMAX_BACKWARD, "safe_softmax_backward"):
            op = "softmax_backward" if op == "safe_softmax_backward" else op
            yield Step(op, bsym.output, tuple(bsym.args), dict(bsym.kwargs))
            return
    if identifier in OPERATIONS:
        if not isinstance(bsym.output, TensorProxy):
            raise Refusal(f"{name} gives no tensor")
        yield Step(OPERATIONS[identifier], bsym.output, tuple(bsym.args), dict(bsym.kwargs))
        return
    if name in ("half", "bfloat16") and len(bsym.flat_proxy_args) == 1 and not bsym.subsymbols:
        # Thunder takes these methods over from PyTorch as they are, with no prims inside.
        yield Step("cast", bsym.output, tuple(bsym.flat_proxy_args), {})
        return
    if name in ("copy_", "update_aliases"):
        # As part of a region only the value of an in-place update counts; whether that is so, fusion.py decides.
        yield Step("alias", bsym.flat_proxy_outs[0], (bsym.flat_proxy_args[0],), {})
        return
    if bsym.subsymbols:
        for sub in bsym.subsymbols:
            yield from _steps(sub, family)
        return
    inputs = {p.name for p in bsym.flat_proxy_args}
    if bsym.sym.is_prim or bsym.sym.executor is not None or any(p.name not in inputs for p in bsym.flat_proxy_outs):
        raise Refusal(f"{name} is not an operation on rows")


def _check(proxy: Any) -> None:
    if type(proxy) is not TensorProxy:
        raise Refusal(f"{proxy} is not a plain tensor")
    if not all(type(n) is int for n in proxy.shape):
        raise Refusal(f"{proxy.name} has a symbolic shape")
    if 0 in proxy.shape:
        raise Refusal(f"{proxy.name} is empty")
    if torch_dtype(proxy) not in (*IN_MEMORY, *INTEGERS):
        raise Refusal(f"{proxy.name} is {proxy.dtype}; regions compute in float32, float16 and bfloat16")


def torch_dtype(proxy: TensorProxy) -> torch.dtype:
    return dtypes.to_torch_dtype(proxy.dtype)


# ---- places ----------------------------------------------------------------------------------------------------------
Places = tuple["Place | Unknown", ...]


class Unknown:
    """The place of a dimension that a broadcast made, before anything says which axis of the rows it is."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()


def row_places(shape: Sequence[int]) -> Places:
    """Places of a tensor that holds the rows themselves, its last dimension the width."""
    places: list[Place] = [COLUMN]
    step = 1
    for n in reversed(shape[:-1]):
        places.append(None if n == 1 else (step, n))
        step *= n
    return tuple(reversed(places))


def _regroup(places: Places, shape: Sequence[int], target: Sequence[int]) -> Places:
    """Places after a reshape from `shape` to `target`.

    Raises:
        Refusal: the reshape cuts through the width, or joins axes that are not neighbours.
    """
    parts = [(p, n) for p, n in zip(places, shape, strict=True) if n > 1]
    result: list[Place | Unknown] = []
    refusal = Refusal(f"a reshape from {tuple(shape)} to {tuple(target)} cuts through the rows")
    for n in target:
        if n == 1:
            result.append(None)
            continue
        if not parts:
            raise refusal
        place, length = parts.pop(0)
        while length < n:
            following = parts.pop(0)[0] if parts else None
            if not isinstance(place, tuple) or not isinstance(following, tuple):
                raise refusal
            inner, count = following
            if inner * count != place[0]:
                raise refusal
            place, length = (inner, count * place[1]), length * count
        if length > n:
            if length % n or not isinstance(place, tuple):
                raise refusal
            rest = length // n
            parts.insert(0, ((place[0], rest), rest))
            place = (place[0] * rest, n)
        result.append(place)
    return tuple(result)


def _view_back(step: Step, out: Places) -> Places:
    """Places of a view's argument, given those of its result."""
    (a,) = step.tensors
    if step.op in ("copy", "alias"):
        return out
    if step.op == "permute":
        result: list[Any] = [None] * a.ndim
        for position, dim in enumerate(step.args[1]):
            result[dim] = out[position]
        return tuple(result)
    if step.op == "squeeze":
        kept = iter(out)
        removed = {d % a.ndim for d in step.args[1]}
        return tuple(None if d in removed else next(kept) for d in range(a.ndim))
    if step.op == "broadcast":
        dims = step.args[2]
        return tuple(None if a.shape[i] == 1 else out[dims[i]] for i in range(a.ndim))
    return _regroup(out, step.out.shape, a.shape)


def _view_forward(step: Step, places: Places) -> Places:
    (a,) = step.tensors
    if step.op in ("copy", "alias"):
        return places
    if step.op == "permute":
        return tuple(places[dim] for dim in step.args[1])
    if step.op == "squeeze":
        removed = {d % a.ndim for d in step.args[1]}
        return tuple(p for d, p in enumerate(places) if d not in removed)
    if step.op == "broadcast":
        result: list[Any] = [None if n == 1 else UNKNOWN for n in step.out.shape]
        for i, dim in enumerate(step.args[2]):
            if a.shape[i] != 1:
                result[dim] = places[i]
        return tuple(result)
    return _regroup(places, a.shape, step.out.shape)


def _merge(known: Places | None, places: Places) -> Places:
    if known is None:
        return places
    return tuple(b if a is UNKNOWN else a for a, b in zip(known, places, strict=True))


def is_complete(places: Places | None) -> bool:
    return places is not None and UNKNOWN not in places


# ---- lowering --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Lowered:
    """A region, the proxy that each of its inputs reads, and the number of the region's output that each proxy is."""

    region: Region
    inputs: tuple[TensorProxy, ...]
    outputs: dict[str, int]


class Lowering:
    """Lowers the steps of one candidate region.

    Args:
        body: the steps, in trace order; the first softmax among them gives the rows.
        outputs: proxies that the region has to write.
        float32_inside: intermediate results stay in float32 where the trace rounds them to a half type.
    """

    def __init__(self, body: Sequence[Step], outputs: Sequence[TensorProxy], *, float32_inside: bool = False) -> None:
        self.producer = {step.out.name: step for step in body}
        self.float32_inside = float32_inside
        self.nodes: list[Node] = []
        self.ranges: dict[int, tuple[int, int]] = {}  # of integer nodes: least and greatest value
        self.numbers: dict[Node, int] = {}
        self.memo: dict[tuple[str, Places], int] = {}
        self.places_of: dict[str, Places] = {}
        self.inputs: list[tuple[TensorProxy, Tensor]] = []
        seed = next(step for step in body if step.op in (*ir.SOFTMAX, *ir.SOFTMAX_BACKWARD))
        self.shape = tuple(seed.out.shape)
        if len(self.shape) == 0 or self.shape[-1] == 1:
            raise Refusal("rows of one element have nothing to fuse")
        self.rows, self.width = prod(self.shape[:-1]), self.shape[-1]
        self.forward_places(body, seed)
        self.written = [(self.output(proxy), proxy) for proxy in self.ordered(outputs)]

    # ---- where the rows are
    def forward_places(self, body: Sequence[Step], seed: Step) -> None:
        """Places of everything downstream of the first softmax, as far as they follow from it."""
        self.downstream: dict[str, Places] = {seed.out.name: row_places(self.shape)}
        for step in body:
            known = [(t, self.downstream[t.name]) for t in step.tensors if t.name in self.downstream]
            if not known or step is seed:
                continue
            if step.op in VIEWS.values():
                places = _view_forward(step, known[0][1])
            elif step.op in REDUCTIONS.values():
                removed = {d % known[0][0].ndim for d in step.args[1]}
                places = tuple(p for d, p in enumerate(known[0][1]) if d not in removed)
            else:
                merged: Places | None = None
                for t, p in known:
                    if t.ndim == step.out.ndim:  # else a 0-d operand, whose places say nothing about the result's
                        merged = _merge(merged, p)
                if merged is None:
                    continue
                places = merged
            self.downstream[step.out.name] = places

    def ordered(self, outputs: Sequence[TensorProxy]) -> list[TensorProxy]:
        """Outputs whose places are known first: lowering them finds the places of the others."""
        return sorted(outputs, key=lambda p: not is_complete(self.downstream.get(p.name)))

    def output(self, proxy: TensorProxy) -> int:
        places = self.downstream.get(proxy.name)
        if not is_complete(places):
            places = self.places_of.get(proxy.name)
        if places is None:
            raise Refusal(f"{proxy.name} is not laid out along the rows")
        number = self.value(proxy, places)
        covered = sum(p[1] - 1 for p in places if isinstance(p, tuple))
        if prod(p[1] for p in places if isinstance(p, tuple)) != self.rows or (self.rows > 1 and not covered):
            raise Refusal(f"{proxy.name} does not span all rows")
        if COLUMN not in places and self.region_node_varies(number):
            raise Refusal(f"{proxy.name} varies inside the row but has no dimension for it")
        if torch_dtype(proxy) not in IN_MEMORY:
            raise Refusal(f"{proxy.name} is {proxy.dtype}")
        if COLUMN in places and places[-1] != COLUMN:
            raise Refusal(f"{proxy.name} has the rows' elements apart in memory")
        self.places_of[proxy.name] = places
        return number

    def region_node_varies(self, number: int) -> bool:
        node = self.nodes[number]
        if node.op in ir.REDUCTIONS:
            return False
        if node.op == "input":
            return COLUMN in self.inputs[node.value][1].places  # type: ignore[index]
        if node.op == "index":
            return node.value[2] == COLUMN  # type: ignore[index]
        return node.op in (*ir.SOFTMAX, *ir.SOFTMAX_BACKWARD) or any(map(self.region_node_varies, node.args))

    # ---- values
    def add(self, op: str, args: Sequence[int], dtype: torch.dtype, value: Any = None) -> int:
        node = Node(op, tuple(args), dtype, value)
        # Booleans and integers compare equal, so the key has the type of the value too.
        key = Node(op, tuple(args), dtype, (type(value).__name__, repr(value)))  # type: ignore[arg-type]
        if key not in self.numbers:
            self.numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return self.numbers[key]

    def constant(self, value: Any, dtype: torch.dtype) -> int:
        """The node of a number as a tensor of `dtype` (int32 stands for every integer dtype) holds it."""
        if type(value) not in (bool, int, float):
            raise Refusal(f"{value} is not a plain number")
        if dtype == torch.int32 and (value != value or abs(value) > INT32_MAX or value != int(value)):
            raise Refusal(f"{value} does not fit int32")
        number = self.add("constant", (), dtype, ir.held(value, dtype))
        if dtype == torch.int32:
            self.ranges[number] = (int(value), int(value))
        return number

    def value(self, proxy: TensorProxy, places: Places) -> int:
        """The node of `proxy` where its dimensions have these places."""
        key = (proxy.name, places)
        if key not in self.memo:
            if UNKNOWN in places:
                raise Refusal(f"{proxy.name} is spread over an axis that the rows do not have")
            self.places_of.setdefault(proxy.name, places)
            step = self.producer.get(proxy.name)
            self.memo[key] = self.read(proxy, places) if step is None else self.compute(step, places)
        return self.memo[key]

    def read(self, proxy: TensorProxy, places: Places) -> int:
        _check(proxy)
        if torch_dtype(proxy) not in IN_MEMORY:
            raise Refusal(f"{proxy.name} is {proxy.dtype}: integers are computed from indices, not read")
        tensor = Tensor(tuple(proxy.shape), torch_dtype(proxy), places)  # type: ignore[arg-type]
        for number, (other, same) in enumerate(self.inputs):
            if other.name == proxy.name and same.places == places:
                return self.add("input", (), tensor.dtype, number)
        self.inputs.append((proxy, tensor))
        return self.add("input", (), tensor.dtype, len(self.inputs) - 1)

    def compute(self, step: Step, places: Places) -> int:
        if step.op in ir.SOFTMAX:
            return self.softmax(step, places)
        if step.op in ir.SOFTMAX_BACKWARD:
            return self.softmax_backward(step, places)
        if step.is_view:
            return self.value(step.tensors[0], _view_back(step, places))
        if step.op in REDUCTIONS.values():
            return self.reduction(step, places)
        dtype = torch_dtype(step.out)
        if step.op == "full":
            number = self.constant(step.args[1], torch.int32 if dtype in INTEGERS else dtype)
            if isinf(self.nodes[number].value) and not isinf(step.args[1]):  # type: ignore[arg-type]
                raise Refusal(f"{step.args[1]} overflows {step.out.dtype}")  # torch.full says so
            return number
        if step.op == "iota":
            return self.index(step, places)
        return self.elementwise(step, places, dtype)

    def index(self, step: Step, places: Places) -> int:
        start, stride = step.kwargs.get("start", 0), step.kwargs.get("step", 1)
        if type(start) is not int or type(stride) is not int:
            raise Refusal("an arange of other than plain integers")
        if torch_dtype(step.out) not in INTEGERS:
            raise Refusal("an arange of floats")
        length = step.out.shape[0]
        if length == 1:
            return self.constant(start, torch.int32)
        ends = (start, start + stride * (length - 1))
        number = self.add("index", (), torch.int32, (start, stride, places[0]))
        return self.bounded(number, min(ends), max(ends))

    def bounded(self, number: int, least: int, greatest: int) -> int:
        if max(abs(least), abs(greatest)) > INT32_MAX:
            raise Refusal("an index does not fit int32")
        self.ranges[number] = (least, greatest)
        return number

    def reduction(self, step: Step, places: Places) -> int:
        (a,) = step.tensors
        dims = {d % a.ndim for d in step.args[1]}
        kept = iter(places)
        argument = tuple(COLUMN if d in dims else next(kept) for d in range(a.ndim))
        if len(dims) != 1 or any(a.shape[d] != self.width for d in dims) or COLUMN in places:
            raise Refusal(f"{step.op} is not over the rows' own axis")
        if torch_dtype(a) not in FLOATS:
            raise Refusal(f"{step.op} of {a.dtype}")
        return self.rounded(step.op, [self.value(a, argument)], torch_dtype(step.out))

    def softmax(self, step: Step, places: Places) -> int:
        a, dim = step.args[0], step.args[1]
        self.check_axis(a, dim, places)
        x = self.value(a, places)
        dtype = torch_dtype(step.out)
        if torch_dtype(a) not in FLOATS or dtype not in FLOATS:
            raise Refusal(f"a softmax of {a.dtype} to {step.out.dtype}")
        if dtype != torch_dtype(a):
            x = self.cast(x, dtype)
        return self.rounded(step.op, [x], dtype)

    def softmax_backward(self, step: Step, places: Places) -> int:
        grad, out, dim = step.args[:3]
        self.check_axis(out, dim, places)
        number = self.rounded(step.op, [self.value(grad, places), self.value(out, places)], torch_dtype(out))
        return self.cast(number, torch_dtype(step.out))

    def check_axis(self, a: TensorProxy, dim: Any, places: Places) -> None:
        if type(dim) is not int or places[dim] != COLUMN or a.shape[dim] != self.width:
            raise Refusal(f"a softmax over dimension {dim} of {tuple(a.shape)} has other rows")

    def elementwise(self, step: Step, places: Places, dtype: torch.dtype) -> int:
        if step.op == "cast":
            return self.cast(self.value(step.tensors[0], places), dtype)
        if step.op == "pow":
            return self.power(step, places, dtype)
        operand = next((torch_dtype(t) for t in step.tensors), None)
        if operand is None:
            raise Refusal(f"{step.op} of numbers")
        # A number beside a half-type tensor takes part in arithmetic as float32, ATen's opmath; comparison and choice
        # round it first.
        opmath = torch.float32 if step.op in ARITHMETIC and dtype in ir.HALF else dtype
        numbers_as = operand if step.op in ir.COMPARISONS else opmath
        if numbers_as in INTEGERS:
            numbers_as = torch.int32
        arguments = []
        for position, a in enumerate(step.args):
            if isinstance(a, TensorProxy):
                # Thunder's prims take a 0-d tensor beside others without a broadcast.
                arguments.append(self.value(a, places if a.ndim or not places else ()))
            else:
                as_bool = step.op == "where" and position == 0
                arguments.append(self.constant(a, torch.bool if as_bool else numbers_as))
        if dtype in INTEGERS:
            return self.integer(step.op, arguments)
        if step.op in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not") and dtype != torch.bool:
            raise Refusal(f"{step.op} of {dtype}")
        if step.op in ir.COMPARISONS and any(t not in (*FLOATS, *INTEGERS) for t in map(torch_dtype, step.tensors)):
            raise Refusal(f"{step.op} of booleans")
        if step.op not in ir.COMPARISONS and dtype == torch.bool and not step.op.startswith("bitwise"):
            raise Refusal(f"{step.op} of booleans")
        known = [self.nodes[i].value if self.nodes[i].op == "constant" else None for i in arguments]
        if dtype == torch.bool and step.op.startswith("bitwise") and any(k is not None for k in known):
            return self.logical(step.op, arguments, known)
        if step.op == "where" and known[0] is not None:
            return self.cast(arguments[1 if known[0] else 2], dtype)
        by_number = True if step.op == "div" and not isinstance(step.args[1], TensorProxy) else None
        return self.applied(step.op, arguments, dtype, by_number)

    def applied(self, op: str, arguments: Sequence[int], dtype: torch.dtype, value: Any = None) -> int:
        """The node of an operation on values of which all may be constants."""
        if all(self.nodes[i].op == "constant" for i in arguments):
            return self.folded(op, arguments, dtype)
        return self.rounded(op, arguments, dtype, value)

    def folded(self, op: str, arguments: Sequence[int], dtype: torch.dtype) -> int:
        """An operation on constants, computed here as eager computes it: in their dtypes, half types in float32."""
        function = getattr(torch, op, None)
        if function is None:
            raise Refusal(f"{op} of constants")
        operands = [torch.tensor(self.nodes[i].value, dtype=self.nodes[i].dtype) for i in arguments]
        dtype = self.kept(dtype)
        result = function(*(t.float() if t.dtype in ir.HALF else t for t in operands))
        return self.constant(result.to(dtype).item(), dtype)

    def logical(self, op: str, arguments: Sequence[int], known: Sequence[Any]) -> int:
        """A bitwise operation on booleans of which at least one is a constant."""
        if op == "bitwise_not":
            return self.constant(not known[0], torch.bool)
        fixed, other = (known[0], arguments[1]) if known[0] is not None else (known[1], arguments[0])
        if op == "bitwise_and":
            return other if fixed else self.constant(False, torch.bool)
        if op == "bitwise_or":
            return self.constant(True, torch.bool) if fixed else other
        return self.add("bitwise_not", [other], torch.bool) if fixed else other

    def integer(self, op: str, arguments: Sequence[int]) -> int:
        ranges = [self.ranges.get(i) for i in arguments]
        if op not in ("add", "sub", "mul", "neg") or None in ranges:
            raise Refusal(f"{op} of integers")
        (a, b), (c, d) = ranges[0], ranges[-1]  # type: ignore[misc]
        ends = {
            "add": (a + c, b + d),
            "sub": (a - d, b - c),
            "mul": (min(a * c, a * d, b * c, b * d), max(a * c, a * d, b * c, b * d)),
            "neg": (-b, -a),
        }[op]
        if ends[0] == ends[1]:
            return self.constant(ends[0], torch.int32)
        if op in ("add", "sub") and (c, d) == (0, 0):
            return arguments[0]
        return self.bounded(self.add(op, arguments, torch.int32), *ends)

    def cast(self, number: int, dtype: torch.dtype) -> int:
        source = self.nodes[number].dtype
        if source == dtype or (source == torch.int32 and dtype in INTEGERS):
            return number
        if self.nodes[number].op == "constant":
            value: Any = self.nodes[number].value
            if dtype not in INTEGERS:
                return self.constant(value, dtype)
            if not isfinite(value):
                raise Refusal(f"a cast from {value} to {dtype}")
            return self.constant(int(value), torch.int32)
        if dtype in INTEGERS:
            raise Refusal(f"a cast from {source} to {dtype}")
        if self.float32_inside and dtype in ir.HALF and source == torch.float32:
            return number
        return self.add("cast", [number], dtype)

    def kept(self, dtype: torch.dtype) -> torch.dtype:
        """What a result of `dtype` is kept in."""
        return torch.float32 if self.float32_inside and dtype in ir.HALF else dtype

    def rounded(self, op: str, arguments: Sequence[int], dtype: torch.dtype, value: Any = None) -> int:
        return self.add(op, arguments, self.kept(dtype), value)

    def power(self, step: Step, places: Places, dtype: torch.dtype) -> int:
        base, exponent = step.args
        if not isinstance(base, TensorProxy) or not isinstance(exponent, (int, float)) or float(exponent) not in POWERS:
            raise Refusal(f"a power that is not a number among {POWERS}")
        if dtype != torch.float32:
            raise Refusal(f"a power of {dtype}")
        x = self.value(base, places)
        match float(exponent):
            case 1.0:
                return x
            case -1.0:
                return self.applied("reciprocal", [x], dtype)
            case 0.5:
                return self.applied("sqrt", [x], dtype)
            case -0.5:
                return self.applied("rsqrt", [x], dtype)
        square = self.applied("mul", [x, x], dtype)
        match float(exponent):
            case 2.0:
                return square
            case -2.0:
                return self.applied("reciprocal", [square], dtype)
            case 3.0:
                return self.applied("mul", [square, x], dtype)
        return self.applied("mul", [square, square], dtype)

    def result(self) -> Lowered:
        """The region.

        Raises:
            Refusal: tensors cut the rows in ways that have no common axes.
        """
        numbers: dict[tuple[str, Places], int] = {}
        outputs: list[tuple[int, Tensor]] = []
        by_name: dict[str, int] = {}
        for node, proxy in self.written:
            places = self.places_of[proxy.name]
            by_name[proxy.name] = numbers.setdefault((self.origin(proxy), places), len(outputs))
            if by_name[proxy.name] == len(outputs):
                outputs.append((node, Tensor(tuple(proxy.shape), torch_dtype(proxy), places)))  # type: ignore[arg-type]
        region = Region(self.rows, self.width, tuple(self.nodes), tuple(t for _, t in self.inputs), tuple(outputs))
        try:
            region.axes  # noqa: B018
        except ValueError as error:
            raise Refusal(str(error)) from None
        return Lowered(region, tuple(p for p, _ in self.inputs), by_name)

    def origin(self, proxy: TensorProxy) -> str:
        """The proxy of which this one is an alias (Thunder's shallow_copy), itself if of none."""
        step = self.producer.get(proxy.name)
        return self.origin(step.tensors[0]) if step is not None and step.op == "alias" else proxy.name
