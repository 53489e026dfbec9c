"""Prints the Triton source of a fused region, loads it, and launches it.

The source depends on the region and on which strides are zero (for CUDA, also on which tensors have the same strides),
never on the other strides, on data or on addresses; it is deterministic, is kept as a module file named by its own
hash, and reads like a kernel written by hand: a loop over tiles of ROWS × BLOCK elements (for CUDA, one tile), 64-bit
arithmetic once per tile, everything inside a tile in int32. Half-type values compute in float32 and round where the
region says so. What is printed is decided here; how large a tile may be and how many programs run is plan.py's
decision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import copysign, inf, isnan
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from thunder_npu import cache

from .layout import MAX_OUTER, PER_COLUMN, PER_ROW, SCALAR, TILE, Layout, Strides
from .plan import Plan, Target, plan_one_pass
from .region import COLUMN, COMPARISONS, HALF, REDUCTIONS, SOFTMAX, SOFTMAX_BACKWARD, Node, Region, Tensor, held

KERNEL = "fused_rows"
INF = 'float("inf")'
_TL = {
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.int32: "tl.int32",
    torch.bool: "tl.int1",
}
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_CALLS = {
    "neg": "-{0}", "abs": "tl.abs({0})", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})",
    "log2": "tl.log2({0})", "sqrt": "tl.sqrt({0})", "rsqrt": "1.0 / tl.sqrt({0})", "reciprocal": "1.0 / {0}",
    "tanh": "tanh({0})", "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})",
    "bitwise_not": "{0} == 0",
}  # fmt: skip

_HELPERS = {
    "reciprocal": '''
@triton.jit
def reciprocal(x):
    """1/x to one unit in the last place, by the GPU's own instruction; x and 1/x are normal numbers."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
''',
    "power": '''
@triton.jit
def power(x):
    """2^x, or 0 where that is below 2^-126: without the instructions that make a subnormal number."""
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
''',
    "to_bfloat16": '''
@triton.jit
def to_bfloat16(x):
    """Rounded, two elements an instruction."""
    return tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.bfloat16, True, 2)
''',
    "to_float16": '''
@triton.jit
def to_float16(x):
    """Rounded, two elements an instruction."""
    return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.float16, True, 2)
''',
    "widen": '''
@triton.jit
def widen(x):
    """A bfloat16 is the upper half of its float32; two elements share a register."""
    asm: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return tl.inline_asm_elementwise(asm, "=r,=r,r", [x], tl.float32, True, 2)
''',
    "exp_scaled": '''
@triton.jit
def exp_scaled(x):
    """2^8·exp(x) for x <= 0: no quotient that a half type can hold comes of a subnormal number, which power has not."""
    return power(tl.fma(x, 1.4426950408889634, 8.0))
''',
    "tanh_cuda": '''
@triton.jit
def tanh(x):
    """By exp(2x); near 0, where that cancels, by the odd series."""
    far = tl.fma(reciprocal(power(x * 2.8853900817779268) + 1.0), -2.0, 1.0)
    s = x * x
    odd = tl.fma(s, tl.fma(s, tl.fma(s, 0.021869488, -0.053968254), 0.13333333), -0.33333333)
    return tl.where(s < 0.0625, tl.fma(x * s, odd, x), far)
''',
    "tanh_rounded": '''
@triton.jit
def tanh_rounded(x):
    """For a result that is rounded to a half type at once: below 2^-7 it is x to 15 bits."""
    far = tl.fma(reciprocal(power(x * 2.8853900817779268) + 1.0), -2.0, 1.0)
    return tl.where(tl.abs(x) < 0.0078125, x, far)
''',
    "tanh": '''
@triton.jit
def tanh(x):
    """By exp(-2|x|); near 0, where that cancels, by the odd series."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x + x * s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869488)))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))
''',
    "maximum": '''
@triton.jit
def maximum(x, y):
    """The larger, NaN if either is."""
    return tl.where((x > y) | (x != x), x, y)
''',
    "minimum": '''
@triton.jit
def minimum(x, y):
    """The smaller, NaN if either is."""
    return tl.where((x < y) | (x != x), x, y)
''',
}

# What helpers of the CUDA variant call.
_NEEDED = {
    "tanh": ("reciprocal", "power"),
    "tanh_rounded": ("reciprocal", "power"),
    "exp_scaled": ("power",),
}


@dataclass(frozen=True)
class Variant:
    """What the printed source depends on beside the region."""

    access: tuple[int, ...]  # of inputs, then outputs, then indices: TILE, PER_ROW, PER_COLUMN or SCALAR
    outer: tuple[bool, ...]  # for each of the outer axes, whether there is one
    steps: tuple[tuple[bool, ...], ...]  # for each tensor and index, over which outer axes it has a stride
    alike: tuple[int, ...]  # for each tensor and index, the first that has the same strides (on Ascend, itself)
    masked: bool  # BLOCK exceeds the width
    outer_first: bool  # neighbouring programs take the same rows of neighbouring outer indices
    cuda: bool  # a program per tile, the GPU's half-type arithmetic and fast reciprocal
    far: bool = False  # the number of a tile's first row may exceed int32 before the last tile is moved back


class _Printer:
    def __init__(self, region: Region, variant: Variant) -> None:
        self.region, self.variant = region, variant
        self.loads: list[str] = []
        self.lines: list[str] = []
        self.helpers: list[str] = []
        self.text: list[str] = []  # the expression that names each node
        self.shape: list[int] = []  # TILE, PER_ROW, PER_COLUMN or SCALAR
        self.parameters: list[str] = []
        self.strides_of: dict[int, str] = {}  # the tensor whose strides stand for all that are alike
        self.native: set[int] = set()
        self.skipped: set[int] = set()

    # ---- expressions ----
    def f32(self, i: int) -> str:
        """Node i as a float32 operand (a literal for a constant)."""
        dtype, text = self.region.nodes[i].dtype, self.text[i]
        if dtype not in HALF or self.is_constant(i):
            return text
        if self.variant.cuda and dtype == torch.bfloat16 and self.shape[i] == TILE:
            return f"{self.helper('widen')}({text})"
        return f"{text}.to(tl.float32)"

    def rounded(self, expression: str, dtype: torch.dtype, shape: int) -> str:
        """A float32 expression, of more than one term, as a half type."""
        if self.variant.cuda and shape == TILE:
            return f"{self.helper('to_' + str(dtype).removeprefix('torch.'))}({expression})"
        return f"({expression}).to({_TL[dtype]})"

    def is_constant(self, i: int) -> bool:
        return self.region.nodes[i].op == "constant"

    def emit(self, i: int, expression: str) -> None:
        self.lines.append(f"v{i} = {expression}")
        self.text.append(f"v{i}")

    def spread(self, i: int) -> str:
        """Node i filling a tile: what a reduction over the width reads."""
        if self.shape[i] == TILE:
            return self.f32(i)
        return self.fill(i, "[ROWS, BLOCK]")

    def fill(self, i: int, shape: str) -> str:
        """Node i spread over a tile of this shape."""
        if self.is_constant(i):
            return f"tl.full({shape}, {self.text[i]}, tl.float32)"
        return f"tl.broadcast_to({self.f32(i)}, {shape})"

    def inside(self, expression: str, neutral: str) -> str:
        return f"tl.where(inside, {expression}, {neutral})" if self.variant.masked else expression

    def helper(self, name: str) -> str:
        """The name, once what it calls is known to be printed before it."""
        if self.variant.cuda:
            for needed in _NEEDED.get(name, ()):
                self.helper(needed)
            name = f"{name}_cuda" if f"{name}_cuda" in _HELPERS else name
        if name in _HELPERS and name not in self.helpers:
            self.helpers.append(name)
        return name

    # ---- memory ----
    def offset(self, number: int, name: str) -> tuple[str, str]:
        """(scalar 64-bit base, offsets inside the tile) of tensor or index `number`, whose strides are name_…"""
        variant = self.variant
        name = self.strides_of.setdefault(variant.alike[number], name)
        base = []
        for axis, step in enumerate(variant.steps[number]):
            if step:
                base.append(f"outer{axis} * {self.parameter(f'{name}_outer{axis}')}")
        access = variant.access[number]
        inner = []
        if access in (TILE, PER_ROW):
            stride = self.parameter(f"{name}_row")
            base.append(f"row * {stride}")
            inner.append(f"rows * {stride}")
        if access in (TILE, PER_COLUMN):
            inner.append("columns")
        return " + ".join(base), " + ".join(inner)

    def parameter(self, name: str) -> str:
        if name not in self.parameters:
            self.parameters.append(name)
        return name

    def mask(self, access: int) -> str:
        return ", mask=inside" if self.variant.masked and access in (TILE, PER_COLUMN) else ""

    def pointer(self, number: int, name: str) -> str:
        base, inner = self.offset(number, name)
        # Rows and columns are added one after the other: their sum would have to be widened to 64 bits per element.
        pointer = f"{name} + ({base})" if base else name
        return f"{pointer} + {inner}" if inner else pointer

    def load(self, i: int, number: int) -> None:
        name = f"in{number}"
        access = self.variant.access[number]
        mask = self.mask(access)
        self.shape.append(access)
        boolean = " != 0" if self.region.inputs[number].dtype == torch.bool else ""
        other = (", other=0" if boolean else ", other=0.0") if mask else ""
        self.emit(i, f"tl.load({self.pointer(number, name)}{mask}{other}){boolean}")
        if self.variant.cuda:
            # Every load is under way before the first value is needed; the compiler leaves them where they are printed.
            self.loads.append(self.lines.pop())

    def store(self, number: int, node: int, tensor: Tensor) -> None:
        slot = len(self.region.inputs) + number
        access = self.variant.access[slot]
        value = self.text[node]
        if self.is_constant(node) or (self.shape[node] != access and access != SCALAR):
            shape = {TILE: "[ROWS, BLOCK]", PER_ROW: "[ROWS, 1]"}[access]
            value = self.fill(node, shape)
            boolean = self.region.nodes[node].dtype == torch.bool and not self.is_constant(node)
            dtype = torch.bool if boolean else torch.float32
        else:
            dtype = self.region.nodes[node].dtype
        if tensor.dtype == torch.bool:
            value = f"({value}).to(tl.int8)"
        elif dtype != tensor.dtype:
            value = f"({value}).to({_TL[tensor.dtype]})"
        self.lines.append(f"tl.store({self.pointer(slot, f'out{number}')}, {value}{self.mask(access)})")

    # ---- nodes ----
    def node(self, i: int, node: Node) -> None:
        if node.op == "input":
            assert isinstance(node.value, int)
            return self.load(i, node.value)
        if node.op == "constant":
            self.shape.append(SCALAR)
            self.text.append(literal(node.value))
            return None
        if node.op == "index":
            return self.index(i, node)
        if node.op in REDUCTIONS:
            self.shape.append(PER_ROW)
            return self.reduction(i, node)
        if node.op in SOFTMAX:
            self.shape.append(TILE)
            return self.softmax(i, node)
        if node.op in SOFTMAX_BACKWARD:
            self.shape.append(TILE)
            return self.softmax_backward(i, node)
        self.shape.append(self.result_shape(node))
        return self.elementwise(i, node)

    def result_shape(self, node: Node) -> int:
        shapes = {self.shape[a] for a in node.args}
        if TILE in shapes or {PER_ROW, PER_COLUMN} <= shapes:
            return TILE
        return next((s for s in (PER_ROW, PER_COLUMN) if s in shapes), SCALAR)

    def elementwise(self, i: int, node: Node) -> None:
        a = [self.f32(j) for j in node.args]
        logical = node.dtype == torch.bool and node.op not in COMPARISONS
        if node.op == "cast" and i in self.native:
            inner = self.region.nodes[node.args[0]]
            operands = [
                self.text[j] if self.is_constant(j) else self.text[self.region.nodes[j].args[0]] for j in inner.args
            ]
            return self.emit(i, f"{operands[0]} {_INFIX[inner.op]} {operands[1]}")
        if node.op == "cast":
            inner = self.region.nodes[node.args[0]]
            source = inner.dtype
            if node.dtype == torch.bool:
                expression = f"{a[0]} != 0"
            elif source == node.dtype or (node.dtype == torch.float32 and source in HALF):
                expression = a[0]
            elif (
                self.variant.cuda and source == torch.float32 and inner.args and self._is_half(node.args[0], node.dtype)
            ):
                expression = self.text[inner.args[0]]  # widened and rounded back
            elif self.variant.cuda and node.dtype in HALF and source.is_floating_point:
                expression = self.rounded(a[0], node.dtype, self.shape[i])
            else:
                expression = f"{self.text[node.args[0]]}.to({_TL[node.dtype]})"
            return self.emit(i, expression)
        if node.op == "where":
            expression = f"tl.where({', '.join(a)})"
        elif node.op == "div" and self.variant.cuda and self.divides_by_number(node):
            # As PyTorch does on a GPU: a number is divided by through its float32 inverse.
            # (A quotient of float32 numbers that is rounded to float64 and then to float32 is the float32 quotient.)
            divisor = held(self.region.nodes[node.args[1]].value, torch.float32)  # type: ignore[arg-type]
            expression = f"{a[0]} * {literal(held(1.0 / divisor, torch.float32))}"
        elif node.op in _INFIX:
            expression = f"{a[0]} {_INFIX[node.op]} {a[1]}"
        elif node.op == "tanh" and self.variant.cuda and self.is_seen_as_half(i):
            expression = f"{self.helper('tanh_rounded')}({a[0]})"
        else:
            self.helper(node.op)
            expression = _CALLS[node.op].format(*a)
        if not logical and node.dtype in HALF:
            expression = self.rounded(expression, node.dtype, self.shape[i])
        return self.emit(i, expression)

    def index(self, i: int, node: Node) -> None:
        assert isinstance(node.value, tuple)
        start, step, _ = node.value
        number = len(self.region.inputs) + len(self.region.outputs) + self.indices.index(i)
        base, inner = self.offset(number, f"index{i}")
        if "columns" in inner:
            inner = "columns" if step == 1 else f"columns * {step}"
        terms = [t for t in (base, inner) if t]
        text = " + ".join(terms).replace("row * ", "row.to(tl.int32) * ")
        self.shape.append(self.variant.access[number])
        self.emit(
            i, (f"{start} + " if start else "") + (f"({text}).to(tl.int32)" if base else text) if terms else f"{start}"
        )

    @property
    def indices(self) -> list[int]:
        return [i for i, node in enumerate(self.region.nodes) if node.op == "index"]

    def reduction(self, i: int, node: Node) -> None:
        x = self.spread(node.args[0])
        if node.op == "sum":
            expression = f"tl.sum({self.inside(x, '0.0')}, 1)[:, None]"
        else:
            sign, function = ("-", "max") if node.op == "amax" else ("", "min")
            self.lines.append(f"x{i} = {self.inside(x, sign + INF)}")
            # A row that holds a NaN has NaN for its extremes, whatever the target's max and min make of one.
            self.lines.append(f"n{i} = tl.sum(tl.where(x{i} != x{i}, 1.0, 0.0), 1)[:, None]")
            expression = f'tl.where(n{i} > 0.0, float("nan"), tl.{function}(x{i}, 1)[:, None])'
        if node.dtype in HALF:
            expression = f"({expression}).to({_TL[node.dtype]})"
        self.emit(i, expression)

    def softmax(self, i: int, node: Node) -> None:
        self.lines.append(f"x{i} = {self.inside(self.spread(node.args[0]), '-' + INF)}")
        self.lines.append(f"m{i} = tl.max(x{i}, 1)[:, None]")
        if node.op == "safe_softmax":
            # A row of nothing but -inf has the maximum -inf; subtracting 0 there leaves exp(-inf) = 0 throughout.
            self.lines.append(f'm{i} = tl.where(m{i} == -float("inf"), 0.0, m{i})')
        exp, inverse = "tl.exp", f"(1.0 / s{i})"
        if self.variant.cuda and node.op != "log_softmax":
            inverse = f"{self.helper('reciprocal')}(s{i})"
            if node.dtype in HALF or self.is_rounded_at_once(i):
                exp = self.helper("exp_scaled")
        self.lines.append(f"e{i} = {exp}(x{i} - m{i})")
        self.lines.append(f"s{i} = tl.sum(e{i}, 1)[:, None]")
        if node.op == "log_softmax":
            expression = f"x{i} - m{i} - tl.log(s{i})"
        else:
            if node.op == "safe_softmax":
                self.lines.append(f"s{i} = tl.where(s{i} == 0.0, 1.0, s{i})")
            expression = f"e{i} * {inverse}"
        if node.dtype in HALF:
            expression = self.rounded(expression, node.dtype, TILE)
        self.emit(i, expression)

    def softmax_backward(self, i: int, node: Node) -> None:
        grad, out = self.spread(node.args[0]), self.spread(node.args[1])
        product = f"{grad} * {out}" if node.op == "softmax_backward" else grad
        self.lines.append(f"s{i} = tl.sum({self.inside(product, '0.0')}, 1)[:, None]")
        plain = f"{out} * ({grad} - s{i})"
        expression = plain if node.op == "softmax_backward" else f"{grad} - tl.exp({out}) * s{i}"
        if node.dtype in HALF:
            expression = self.rounded(expression, node.dtype, TILE)
        self.emit(i, expression)

    def divides_by_number(self, node: Node) -> bool:
        return node.value is True and held(self.region.nodes[node.args[1]].value, torch.float32) != 0  # type: ignore

    def readers(self, i: int) -> list[tuple[int, Node]]:
        return [(k, node) for k, node in enumerate(self.region.nodes) if i in node.args]

    def is_rounded_at_once(self, i: int) -> bool:
        """Whether all that reads node i is a cast to a half type."""
        casts = all(node.op == "cast" and node.dtype in HALF for _, node in self.readers(i))
        return casts and not self.is_written(i)

    def is_gradient_factor(self, i: int) -> bool:
        """Whether node i is a square t·t of which only g·(1 - t·t) is seen, rounded to a half type: tanh's gradient."""

        def leads_to(k: int, op: str) -> bool:
            return not self.is_written(k) and all(node.op == op for _, node in self.readers(k))

        differences = self.readers(i)
        products = [product for k, _ in differences for product in self.readers(k)]
        return (
            leads_to(i, "sub")
            and all(node.args[1] == i and self.is_constant(node.args[0]) for _, node in differences)
            and all(leads_to(k, "mul") for k, _ in differences)
            and all(self.is_rounded_at_once(k) for k, _ in products)
        )

    def is_seen_as_half(self, i: int) -> bool:
        """Whether no more is seen of the tanh in node i than a half type holds: rounded at once, or in 1 - t·t.

        Where t is small its error does not show in 1 - t·t, and beside 1 it is what float32 has itself.
        """
        return not self.is_written(i) and all(
            (node.op == "cast" and node.dtype in HALF)
            or (node.op == "mul" and node.args == (i, i) and self.is_gradient_factor(k))
            for k, node in self.readers(i)
        )

    def is_written(self, i: int) -> bool:
        return any(number == i for number, _ in self.region.outputs)

    def find_native(self) -> None:
        """Sums and products of half-type values that round at once: one instruction on a GPU, the same result.

        A product of two half-type numbers is exact in float32, and so is a sum unless one operand is too small to
        matter; so computing in float32 and rounding is what the half-type instruction does.
        """
        nodes = self.region.nodes
        uses = [0] * len(nodes)
        for node in nodes:
            for j in node.args:
                uses[j] += 1
        written = {n for n, _ in self.region.outputs}
        for i, node in enumerate(nodes):
            if node.op != "cast" or node.dtype not in HALF:
                continue
            j = node.args[0]
            inner = nodes[j]
            if inner.op not in ("add", "sub", "mul") or inner.dtype != torch.float32 or uses[j] > 1 or j in written:
                continue
            if all(self._is_half(k, node.dtype) for k in inner.args) and not all(map(self.is_constant, inner.args)):
                self.native.add(i)
                self.skipped.add(j)
                self.skipped |= {k for k in inner.args if nodes[k].op == "cast" and uses[k] == 1 and k not in written}

    def _is_half(self, k: int, dtype: torch.dtype) -> bool:
        node = self.region.nodes[k]
        if node.op == "constant":
            return held(node.value, dtype) == node.value  # type: ignore[arg-type]
        return node.op == "cast" and self.region.nodes[node.args[0]].dtype == dtype

    def module(self) -> str:
        region, variant = self.region, self.variant
        if variant.cuda:
            self.find_native()
        for i, node in enumerate(region.nodes):
            if i in self.skipped:
                self.text.append("")
                self.shape.append(self.result_shape(node))
                continue
            self.node(i, node)
            for number, (written, tensor) in enumerate(region.outputs):
                if written == i:
                    self.store(number, i, tensor)
        head = []
        count = ""
        axes = [axis for axis, present in enumerate(variant.outer) if present]
        own = "tile"
        if axes:
            divide, rest = ("%", "//") if variant.outer_first else ("//", "%")
            count = "blocks" if variant.outer_first else "row_tiles"
            head.append(f"block = tile {divide} {count}")
            own = f"(tile {rest} {count})"
        if variant.far:
            head.append(f"row = tl.minimum({own}.to(tl.int64) * ROWS, height - ROWS)")
        else:
            head.append(f"row = tl.minimum({own} * ROWS, height - ROWS).to(tl.int64)")
        for position, axis in reversed([*enumerate(axes)]):
            value = "block" if position == 0 else f"(block % outer{axis}_length)"
            head.append(f"outer{axis} = {value}.to(tl.int64)")
            if position:
                head.append(f"block = block // outer{axis}_length")
        pointers = [f"in{n}" for n in range(len(region.inputs))] + [f"out{n}" for n in range(len(region.outputs))]
        sizes = (
            [f"outer{axis}_length" for axis in axes[1:]]
            + ([count] if axes else [])
            + ([] if variant.cuda else ["tiles"])
            + ["height"]
        )
        constants = ["ROWS: tl.constexpr", "BLOCK: tl.constexpr"]
        setup = ["rows = tl.arange(0, ROWS)[:, None]", "columns = tl.arange(0, BLOCK)[None, :]"]
        if variant.masked:
            sizes.append("width")
            setup.append("inside = columns < width")
        numbers = [f"{n}: tl.constexpr" if variant.cuda and _is_compiled(n) else n for n in (*sizes, *self.parameters)]
        signature = ", ".join([*pointers, *numbers, *constants])
        body = [f"    {line}" for line in setup]
        if variant.cuda:
            body += [f"    {line}" for line in ("tile = tl.program_id(0)", *head, *self.loads, *self.lines)]
        else:
            body.append("    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):")
            body += [f"        {line}" for line in (*head, *self.lines)]
        helpers = "".join(f"\n{_HELPERS[name]}" for name in self.helpers)
        return (
            "import triton\nimport triton.language as tl\n"
            + helpers
            + f"\n\n@triton.jit\ndef {KERNEL}({signature}):\n"
            + "\n".join(body)
            + "\n"
        )


def _is_compiled(number: str) -> bool:
    """Whether a kernel for CUDA is compiled for the value: what no batch changes, and what addresses and masks are of.

    A step to the next row is then part of the instruction, dividing a multiplication, and most masks are known.
    """
    return number in ("width", "row_tiles") or number.endswith(("_row", "_length"))


def literal(value: Any) -> str:
    """The number of a constant, which is as its dtype holds it (region.held), in Python."""
    if isinstance(value, (bool, int)):
        return repr(value)
    if isnan(value):
        return 'float("nan")'
    if abs(value) == inf:
        return INF if value > 0 else f"(-{INF})"
    return repr(value) if copysign(1.0, value) > 0 else f"({value!r})"


def source(region: Region, variant: Variant) -> tuple[str, tuple[str, ...]]:
    """The text of the kernel's module, and the names of its stride parameters in order."""
    printer = _Printer(region, variant)
    return printer.module(), tuple(printer.parameters)


# ---- loading ---------------------------------------------------------------------------------------------------------
_loaded: dict[Path, Any] = {}


def path_of(text: str) -> Path:
    """The file of a module text, in the folder "regions" of the cache."""
    return cache.path("regions", f"region_{hashlib.sha256(text.encode()).hexdigest()[:20]}.py")


def load(text: str) -> Any:
    """The kernel of a module text; the same text gives the same kernel.

    The file is for Triton and for people, who read a kernel's source there; what runs is compiled from `text`.

    Raises:
        CacheError: the file cannot be written, or its folder is open to others.
    """
    path = path_of(text)
    if path not in _loaded:
        cache.directory("regions")
        if not path.exists() or path.read_bytes() != text.encode():
            cache.write(path, text)
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)
        _loaded[path] = getattr(module, KERNEL)
    return _loaded[path]


# ---- launching -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Launch:
    """A region bound to the strides of its tensors and to a device's plan."""

    text: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    plan: Plan

    @cached_property
    def kernel(self) -> Any:
        return load(self.text)


def unfit(region: Region, target: Target) -> str | None:
    """Why no launch on the target can compute the region, in words; None if one can.

    The question is the launch's own (:func:`addressed`), for inputs that lie in memory as the rows do: whatever strides
    inputs have, copies of them that lie so can be made.
    """
    found = addressed(region, [row_strides(t) for t in region.inputs], target)
    return found if isinstance(found, str) else None


def prepare(region: Region, strides: Sequence[Sequence[int]], target: Target) -> Launch | None:
    """Source, sizes and plan for inputs with these strides (in elements, one entry per dimension).

    None if no kernel can address tensors with these strides: the caller then copies the inputs to lie as the rows do,
    which works for every region that :func:`unfit` has nothing against.
    """
    found = addressed(region, strides, target)
    return None if isinstance(found, str) else _bind(region, *found, target)


def addressed(region: Region, strides: Sequence[Sequence[int]], target: Target) -> tuple[Layout, Plan] | str:
    """How a kernel walks the tensors of a region whose inputs have these strides, or why none can, in words."""
    inputs = [region.axis_strides(t.places, s) for t, s in zip(region.inputs, strides, strict=True)]
    outputs = [region.axis_strides(t.places, contiguous(t.shape)) for _, t in region.outputs]
    indices = [
        region.axis_strides((node.value[2],), (node.value[1],))  # type: ignore[index]
        for node in region.nodes
        if node.op == "index"
    ]
    if any(s[-1] not in (0, 1) for s in (*inputs, *outputs)):
        return "the elements of a row lie apart in memory"
    shape = (*region.axes, region.width)
    rows = tuple(contiguous(shape))
    # Columns of an index may have any step; the printer multiplies.
    flat = [(*s[:-1], min(1, abs(s[-1]))) for s in (*inputs, *outputs, *indices)]
    layout = _row_layout(shape, [*flat, rows])
    if layout is None:
        return f"its tensors agree on no fewer than {MAX_OUTER + 2} axes of rows; a kernel walks {MAX_OUTER + 1}"
    plan = _plan(region, layout.rows, layout.outer_count, target)
    if plan is None:
        return "its tile would outgrow the unified buffer" if target.kind == "ascend" else "no tile holds its rows"
    if any((plan.rows - 1) * abs(s.row) + region.width >= INT32 for s in layout.tensors):
        return "the rows of a tile lie 2^31 elements apart"
    if plan.tiles + plan.grid > INT32:
        return "it has more than 2^31 tiles"
    return layout, plan


INT32 = 2**31  # numbers from here on do not fit int32

# Rows that a tile wants beside each other; with fewer on the innermost axis the longest takes its place.
_NEIGHBOURS = 8


def _row_layout(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Layout | None:
    """Row axes merged as far as all strides allow; None if more than MAX_OUTER remain beside the rows.

    Unlike the kernels of one softmax, a region keeps the innermost axis for its tiles: the rows of a tile are then
    neighbours in memory, and a mask that repeats over an outer axis is read again while the cache still has it.
    """
    axes: list[tuple[int, tuple[int, ...]]] = []
    for i in reversed(range(len(shape) - 1)):
        step = tuple(s[i] for s in strides)
        if axes and all(a == b * axes[-1][0] for a, b in zip(step, axes[-1][1], strict=True)):
            axes[-1] = (axes[-1][0] * shape[i], axes[-1][1])
        else:
            axes.append((shape[i], step))
    axes = axes or [(1, tuple(0 for _ in strides))]
    longest = max(range(len(axes)), key=lambda i: (axes[i][0], -i))
    rows, row = axes.pop(0 if axes[0][0] >= _NEIGHBOURS else longest)
    if len(axes) > MAX_OUTER:
        return None
    axes = ([*axes] + [(1, (0,) * len(strides))] * (MAX_OUTER - len(axes)))[::-1]
    return Layout(
        outer=(axes[0][0], axes[1][0], axes[2][0]),
        rows=rows,
        width=shape[-1],
        axis=1,
        tensors=tuple(
            Strides((axes[0][1][t], axes[1][1][t], axes[2][1][t]), row[t], strides[t][-1]) for t in range(len(strides))
        ),
    )


def _outer_first(region: Region, layout: Layout) -> bool:
    """Whether a large tensor repeats over an outer axis: the tiles that share a part of it should run together."""
    for n, tensor in enumerate(region.inputs):
        strides = layout.tensors[n]
        size = tensor.dtype.itemsize * (layout.rows if strides.row else 1) * (layout.width if strides.column else 1)
        for length, step in zip(reversed(layout.outer), reversed(strides.outer), strict=True):
            if length > 1 and step == 0 and size > _CACHED_BYTES:
                return True
            size *= length if step else 1
    return False


# What of a repeating tensor the last-level cache keeps beside the rows that stream by: of an H200's 60 MB, a fifteenth
# (T5's float32 bias: 3 MB read again cost nothing, 7 MB 4%, 12 MB 15%).
_CACHED_BYTES = 4 * 2**20


def _bind(region: Region, layout: Layout, plan: Plan, target: Target) -> Launch:
    outer = tuple(length > 1 for length in layout.outer)
    tensors = layout.tensors[:-1]
    cuda = target.kind == "cuda"
    variant = Variant(
        access=tuple(_access(region, layout, i) for i in range(len(tensors))),
        outer=outer,
        steps=tuple(tuple(present and s.outer[a] != 0 for a, present in enumerate(outer)) for s in tensors),
        alike=tuple(tensors.index(s) if cuda else i for i, s in enumerate(tensors)),
        masked=plan.masked,
        outer_first=any(outer) and _outer_first(region, layout),
        cuda=cuda,
        far=layout.rows + plan.rows > INT32,
    )
    text, names = source(region, variant)
    by_name: dict[str, int] = {}
    indices = [i for i, node in enumerate(region.nodes) if node.op == "index"]
    labels = [f"in{n}" for n in range(len(region.inputs))] + [f"out{n}" for n in range(len(region.outputs))]
    for label, s in zip([*labels, *(f"index{i}" for i in indices)], tensors, strict=True):
        by_name |= {f"{label}_row": s.row, **{f"{label}_outer{a}": s.outer[a] for a in range(MAX_OUTER)}}
    present = [axis for axis in range(MAX_OUTER) if outer[axis]]
    count = layout.outer_count if variant.outer_first else -(-layout.rows // plan.rows)
    sizes = [layout.outer[axis] for axis in present[1:]] + ([count] if present else [])
    sizes += ([] if variant.cuda else [plan.tiles]) + [layout.rows]
    if plan.masked:
        sizes.append(layout.width)
    return Launch(text, tuple(sizes), tuple(by_name[name] for name in names), plan)


def _access(region: Region, layout: Layout, tensor: int) -> int:
    written = tensor - len(region.inputs)
    if 0 <= written < len(region.outputs):
        return TILE if COLUMN in region.outputs[written][1].places else PER_ROW
    strides = layout.tensors[tensor]
    if strides.row or (layout.rows == 1 and written < 0):
        return TILE if strides.column else PER_ROW
    return PER_COLUMN if strides.column else SCALAR


def _plan(region: Region, rows: int, outer: int, target: Target) -> Plan | None:
    loads = [t.dtype.itemsize for n, t in enumerate(region.inputs) if region.input_is_tile(n)]
    stores = [t.dtype.itemsize for _, t in region.outputs if COLUMN in t.places]
    live, nodes = region.live, sum(region.is_tile)
    return plan_one_pass(
        rows, region.width, target, loads=loads or [4], stores=stores, live=live, nodes=nodes, outer=outer
    )


def contiguous(shape: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return strides[::-1]


def row_order(tensor: Tensor) -> list[int]:
    """The dimensions as the rows have them: most significant digit first, the column last."""

    def position(dimension: int) -> int:
        place = tensor.places[dimension]
        return -place[0] if isinstance(place, tuple) else int(place == COLUMN)

    return sorted(range(len(tensor.places)), key=position)


def row_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides of a tensor that lies in memory as the rows do."""
    order = row_order(tensor)
    strides = contiguous([tensor.shape[d] for d in order])
    return tuple(strides[order.index(d)] for d in range(len(order)))
