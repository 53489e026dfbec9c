"""Rows of a strided tensor: what a kernel has to know of the memory, found out on the host.

A reduction over one dimension sees a tensor as *rows*. The other dimensions are merged as far as the strides of all
tensors allow; one of what remains becomes the row axis, along which a tile takes several rows, and at most three more
are outer axes, which a kernel walks with 64-bit scalar arithmetic, once per tile. Nothing is copied or transposed.

Pure functions of shapes and strides; no torch, no triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

MAX_OUTER = 3

# How a kernel reads a tensor's tile; constexpr values of the Triton kernels.
TILE = 0  # both axes by their strides
TURNED = 1  # contiguous along the tile's first axis: read that way round, transposed on chip
PER_ROW = 2  # the same value in every column (column stride 0)
PER_COLUMN = 3  # the same values in every row (row stride 0)
SCALAR = 4  # one value


@dataclass(frozen=True)
class Strides:
    """Strides of one tensor, in elements: the outer axes first (0 where there is none), then row and column."""

    outer: tuple[int, int, int]
    row: int
    column: int


@dataclass(frozen=True)
class Layout:
    """`outer` × `rows` rows of `width` elements.

    `axis` is the tile axis that is reduced: 1 where columns are contiguous in the result (tile = rows × columns),
    0 where neighbouring rows are (a reduction over a middle dimension; tile = columns × rows).
    """

    outer: tuple[int, int, int]
    rows: int
    width: int
    axis: int
    tensors: tuple[Strides, ...]

    @property
    def outer_count(self) -> int:
        return prod(self.outer)

    def access(self, tensor: int, tile_rows: int | None = None) -> int:
        """How a tile (of `tile_rows` rows) of a tensor is read: TILE, TURNED, PER_ROW, PER_COLUMN or SCALAR."""
        strides = self.tensors[tensor]
        spread_columns = strides.column == 0 and self.width > 1
        spread_rows = strides.row == 0 and (self.rows if tile_rows is None else tile_rows) > 1
        if spread_columns or spread_rows:
            return SCALAR if spread_columns and spread_rows else PER_ROW if spread_columns else PER_COLUMN
        inner, other = (strides.column, strides.row) if self.axis == 1 else (strides.row, strides.column)
        return TURNED if inner != 1 and other == 1 and self.rows > 1 and self.width > 1 else TILE

    def strided(self, tensor: int) -> bool:
        """Whether neighbours along the tile's inner axis are apart in memory, in a way that no reading order mends."""
        strides = self.tensors[tensor]
        inner, extent = (strides.column, self.width) if self.axis == 1 else (strides.row, self.rows)
        return self.access(tensor) == TILE and inner != 1 and extent > 1

    @property
    def contiguous_rows(self) -> bool:
        """Whether every tensor is one run of memory, row after row."""
        return (
            (self.axis == 1 or self.width == 1)
            and self.outer_count == 1
            and all(s.column == 1 and (s.row == self.width or self.rows == 1) for s in self.tensors)
        )


def row_layout(shape: Sequence[int], dim: int, strides: Sequence[Sequence[int]], narrow: int = 1) -> Layout | None:
    """The layout of a row-wise operation over `dim`, or None where more than `MAX_OUTER` outer axes would remain.

    Args:
        shape: common shape of the tensors, no size 0; () counts as (1,).
        dim: reduced dimension, 0 ≤ dim < max(1, len(shape)).
        strides: strides in elements of every tensor; the last one is the result, which no stride 0 may overlap.
        narrow: neighbouring rows of the result make the row axis only where there are at least so many of them.
    """
    width = shape[dim] if shape else 1
    column = [s[dim] if shape and width > 1 else 1 for s in strides]
    axes: list[tuple[int, tuple[int, ...]]] = []
    for i in reversed(range(len(shape))):
        if i == dim or shape[i] == 1:
            continue
        step = tuple(s[i] for s in strides)
        if axes and all(outer == inner * axes[-1][0] for outer, inner in zip(step, axes[-1][1], strict=True)):
            axes[-1] = (axes[-1][0] * shape[i], axes[-1][1])
        else:
            axes.append((shape[i], step))
    # Neighbouring rows of the result, if there are any, else the longest axis; the innermost among equals.
    contiguous = next((i for i, (n, step) in enumerate(axes) if step[-1] == 1 and n >= narrow), None)
    if axes:
        longest = max(range(len(axes)), key=lambda i: (axes[i][0], -i))
        rows, row = axes.pop(longest if contiguous is None else contiguous)
    else:
        rows, row = 1, tuple(width * c for c in column)
    if len(axes) > MAX_OUTER:
        return None
    axes += [(1, (0,) * len(strides))] * (MAX_OUTER - len(axes))
    axes.reverse()
    return Layout(
        outer=(axes[0][0], axes[1][0], axes[2][0]),
        rows=rows,
        width=width,
        axis=1 if contiguous is None else 0,
        tensors=tuple(
            Strides((axes[0][1][t], axes[1][1][t], axes[2][1][t]), row[t], column[t]) for t in range(len(strides))
        ),
    )
