"""The intermediate form of a fused region: rows × width, tensors by their place in the rows, a list of operations.

A region is a function of one row at a time: `rows` rows of `width` elements, everything elementwise or a reduction over
the width. A tensor takes part through its *places*: for every dimension, what an index along it means.

    COLUMN     the position inside the row
    (s, n)     row number // s % n: one mixed-radix digit of the row number (digits s=S, n=H and s=1, n=S of B×H×S rows)
    None       a dimension of length 1

So a mask [B, 1, 1, S] beside scores [B, H, S, S] has places ((H·S, B), None, None, COLUMN), and reshapes, transposes
and broadcasts of rows are relabelling, not operations. This module computes nothing, and knows no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import torch

COLUMN = "column"
Digit = tuple[int, int]
Place = Digit | str | None
HALF = (torch.float16, torch.bfloat16)

# Operations a node may have; codegen.py prints each. Reductions are over the width, in float32.
UNARY = ("neg", "abs", "exp", "exp2", "log", "log2", "tanh", "sqrt", "rsqrt", "reciprocal", "bitwise_not")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCTIONS = ("sum", "amax", "amin")
SOFTMAX = ("softmax", "log_softmax", "safe_softmax")
SOFTMAX_BACKWARD = ("softmax_backward", "log_softmax_backward")


def held(value: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    """`value` as a tensor of `dtype` holds it: rounded to a float type, True or False as a bool.

    Every constant of a region, and every number computed from constants, is made here; it prints as it is.

    Raises:
        RuntimeError: an integer dtype cannot hold the value.
    """
    return torch.tensor(value, dtype=dtype).item()


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory: an input (read through whatever strides it has) or an output (written contiguously)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Node:
    """One value: `op` applied to earlier nodes, rounded to `dtype`.

    `value` is the number of a "constant" (as its dtype holds it), the position among the inputs of an "input", (start,
    step, place) of an "index", True of a "div" by a number rather than by a tensor. "cast" and "where" take their dtype
    from `dtype`; comparisons give torch.bool.
    """

    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    value: bool | int | float | tuple[int, int, Place] | None = None


@dataclass(frozen=True)
class Region:
    """`outputs` pairs a node with the tensor it is written to. Two outputs may show the same node."""

    rows: int
    width: int
    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[int, Tensor], ...]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Lengths of the row axes: the coarsest split of the row number in which every place is a run of axes.

        Raises:
            ValueError: two places cut the row number in ways that have no common refinement.
        """
        cuts = {1, self.rows}
        for place in self._places():
            if isinstance(place, tuple):
                cuts |= {place[0], place[0] * place[1]}
        steps = sorted(cuts)
        for fine, coarse in pairwise(steps):
            if coarse % fine:
                raise ValueError(f"row digits of strides {fine} and {coarse} overlap")
        return tuple(coarse // fine for fine, coarse in pairwise(steps))[::-1]

    def _places(self) -> list[Place]:
        places = [place for tensor in self.inputs for place in tensor.places]
        places += [place for _, tensor in self.outputs for place in tensor.places]
        return places + [node.value[2] for node in self.nodes if isinstance(node.value, tuple)]

    def axis_strides(self, places: Sequence[Place], strides: Sequence[int]) -> tuple[int, ...]:
        """Strides over (`axes` …, column) of a tensor whose dimensions have these places and strides."""
        steps = [prod(self.axes[i + 1 :]) for i in range(len(self.axes))]
        result = [0] * (len(self.axes) + 1)
        for place, stride in zip(places, strides, strict=True):
            if place == COLUMN:
                result[-1] += stride
            elif isinstance(place, tuple):
                first, count = place
                for axis, step in enumerate(steps):
                    if first <= step < first * count:
                        result[axis] += stride * (step // first)
        return tuple(result)

    @cached_property
    def is_tile(self) -> tuple[bool, ...]:
        """For every node, whether it varies both from row to row and inside the row (and so fills a tile)."""
        varies: list[tuple[bool, bool]] = []
        for node in self.nodes:
            if node.op in ("input", "index"):
                places: Sequence[Place] = (
                    self.inputs[node.value].places if isinstance(node.value, int) else node.value[2:]  # type: ignore[index]
                )
                varies.append((any(isinstance(p, tuple) for p in places), COLUMN in places))
            else:
                rows = any(varies[i][0] for i in node.args)
                columns = any(varies[i][1] for i in node.args) and node.op not in REDUCTIONS
                varies.append((rows, columns))
        return tuple(rows and columns for rows, columns in varies)

    def input_is_tile(self, number: int) -> bool:
        """Whether input `number` is read by whole tiles (and not once per row, or once per tile)."""
        places = self.inputs[number].places
        return COLUMN in places and any(isinstance(p, tuple) for p in places)

    @cached_property
    def live(self) -> int:
        """Most float32 tiles alive at once beside the loaded ones, as plan.py counts them.

        A tile lives from the node that makes it to the last that reads it (an output is written at once); a result may
        take the place of an operand that dies with it. A half-type operand is widened to a copy while it is read, and
        a softmax holds the row's exponentials.
        """
        last = list(range(len(self.nodes)))
        for i, node in enumerate(self.nodes):
            for argument in node.args:
                last[argument] = i
        loaded = {i for i, node in enumerate(self.nodes) if node.op == "input"}
        peak = 1
        for i, node in enumerate(self.nodes):
            alive = sum(self.is_tile[j] and j not in loaded and last[j] > i for j in range(i))
            widened = sum(self.is_tile[j] and self.nodes[j].dtype in HALF for j in set(node.args))
            spread = sum(not self.is_tile[j] and self.nodes[j].op != "constant" for j in set(node.args))
            scratch = 1 if node.op in (*SOFTMAX, *SOFTMAX_BACKWARD, "where", "tanh") else 0
            peak = max(peak, alive + self.is_tile[i] + max(widened, min(spread, 1), scratch))
        return peak

    @property
    def bytes_read(self) -> int:
        """Bytes of the distinct elements of all inputs."""
        return sum(prod(t.shape) * t.dtype.itemsize for t in self.inputs)

    @property
    def bytes_written(self) -> int:
        return sum(prod(t.shape) * t.dtype.itemsize for t in {(n, t.dtype): t for n, t in self.outputs}.values())
