"""Row layouts address every element of every tensor exactly once, whatever the strides."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_npu.kernels.layout import PER_COLUMN, PER_ROW, SCALAR, TILE, TURNED, Layout, row_layout


def addresses(layout: Layout, tensor: int) -> list[list[int]]:
    """Element offsets as a kernel computes them: rows in the layout's order, each with its columns."""
    strides = layout.tensors[tensor]
    return [
        [sum(i * s for i, s in zip(outer, strides.outer, strict=True)) + r * strides.row + k * strides.column
         for k in range(layout.width)]
        for outer in itertools.product(*map(range, layout.outer))
        for r in range(layout.rows)
    ]  # fmt: skip


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """A permuted, sliced and expanded view of up to five dimensions, with offsets as values, and a dimension."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=0, max_size=5))
    steps = [draw(st.sampled_from([0, 1, 1, 2])) for _ in sizes]  # 0: expanded
    stored = [max(1, size * step) for size, step in zip(sizes, steps, strict=True)]
    x = torch.arange(int(torch.tensor(stored).prod()) if stored else 1).reshape(stored)
    for i, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        if step == 2:
            x = x.narrow(i, 0, size * step).unfold(i, 1, step).squeeze(-1)
    x = x.expand(sizes).permute(draw(st.permutations(range(len(sizes)))))
    return x, draw(st.integers(0, max(0, len(sizes) - 1)))


@given(views())
@settings(max_examples=400, deadline=None)
def test_rows_are_the_rows_of_the_tensor(case: tuple[torch.Tensor, int]) -> None:
    x, dim = case
    result = torch.arange(x.numel()).reshape(x.shape)
    layout = row_layout(x.shape, dim, [x.stride(), result.stride()])
    if layout is None:
        assert x.dim() == 5  # four axes beside the reduced one always fit
        return
    rows = lambda t: t.reshape(1, 1) if t.dim() == 0 else t.movedim(dim, -1).reshape(-1, t.shape[dim])  # noqa: E731
    expected = {tuple(pair) for pair in zip(rows(result).flatten().tolist(), rows(x).flatten().tolist(), strict=True)}
    ours, theirs = addresses(layout, 1), addresses(layout, 0)
    assert sorted(itertools.chain(*ours)) == list(range(result.numel()))
    assert {pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)} == expected
    assert sorted(map(sorted, ours)) == sorted(map(sorted, rows(result).tolist()))


@pytest.mark.parametrize(
    ("shape", "dim", "strides", "expected"),
    [
        ((6, 8), 1, (8, 1), TILE),
        ((6, 8), 0, (8, 1), TILE),
        ((6, 8), 1, (1, 6), TURNED),
        ((6, 8), 0, (1, 6), TURNED),
        ((6, 8), 1, (16, 2), TILE),
        ((6, 8), 1, (1, 0), PER_ROW),
        ((6, 8), 1, (0, 1), PER_COLUMN),
        ((6, 8), 1, (0, 0), SCALAR),
        ((1, 8), 1, (0, 0), PER_ROW),
        ((6, 1), 1, (1, 0), TILE),
    ],
)
def test_access(shape: tuple[int, ...], dim: int, strides: tuple[int, ...], expected: int) -> None:
    layout = row_layout(shape, dim, [strides, (shape[1], 1)])
    assert layout is not None
    assert layout.access(0) == expected
    assert layout.access(1) == TILE


def test_contiguous_dimensions_merge() -> None:
    layout = row_layout((2, 3, 4, 5), 3, [(60, 20, 5, 1)] * 2)
    assert layout is not None
    assert (layout.outer_count, layout.rows, layout.width, layout.axis) == (1, 24, 5, 1)
    assert layout.contiguous_rows


def test_a_middle_dimension_keeps_its_neighbours_contiguous() -> None:
    layout = row_layout((2, 3, 4, 5), 1, [(60, 20, 5, 1)] * 2)
    assert layout is not None
    assert (layout.outer_count, layout.rows, layout.width, layout.axis) == (2, 20, 3, 0)
    assert not layout.contiguous_rows
