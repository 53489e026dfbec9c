"""Launch plans: they cover every row, fit the device's memory by the model, and stay within the grid and int32."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_npu.kernels.layout import Layout, row_layout
from thunder_npu.kernels.plan import (
    BUDGET,
    LIVE,
    Plan,
    Target,
    ascend_target,
    block_for,
    block_sizes,
    plan,
    plan_bytes,
    plan_one_pass,
    rows_per_tile,
)

ASCEND = [ascend_target("Ascend910B2", 48), ascend_target("Ascend910B4", 40), ascend_target("Ascend950PR_9599", 72)]
CUDA = Target("cuda", "NVIDIA H200", 132)


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, Layout, list[int], list[int]]:
    kernel = draw(st.sampled_from([*LIVE]))
    inputs = 2 if kernel.endswith("backward") else 1
    width, rows = draw(st.integers(1, 2**20)), draw(st.integers(1, 2**24))
    kind = draw(st.sampled_from(["rows", "middle", "turned", "strided", "spread", "padded"]))
    if kind == "middle":
        inner = draw(st.integers(2, 5000))
        shape, dim, dense = (rows, width, inner), 1, (width * inner, inner, 1)
        first = dense
    else:
        shape, dim, dense = (rows, width), 1, (width, 1)
        first = {
            "rows": dense, "turned": (1, rows), "strided": (2 * width, 2), "spread": (0, 0), "padded": (width + 5, 1)
        }[kind]  # fmt: skip
    layout = row_layout(shape, dim, [first, *[dense] * inputs])
    assert layout is not None
    sizes = st.sampled_from([2, 4])
    return kernel, layout, [draw(sizes)] * inputs, [draw(sizes)]


def check(chosen: Plan, layout: Layout) -> None:
    """What every plan promises, whatever the device."""
    assert 1 <= chosen.grid <= chosen.tiles
    if chosen.kernel == "wide":
        assert chosen.tiles == layout.rows
        return
    assert 1 <= chosen.rows <= layout.rows
    assert chosen.tiles == layout.outer_count * -(-layout.rows // chosen.rows)
    # The body of a ragged row is of whole vectors; what is left of it is read apart.
    held = layout.width // chosen.vector * chosen.vector if chosen.kernel == "ragged" else layout.width
    assert chosen.one_pass == (chosen.block >= held)
    assert chosen.masked or layout.width % chosen.block == 0
    if chosen.kernel == "tile":
        for strides in layout.tensors:
            assert (chosen.rows - 1) * strides.row + (chosen.block - 1) * strides.column < 2**31


@given(problems(), st.sampled_from(ASCEND))
@settings(max_examples=400, deadline=None)
def test_ascend_plans(problem: tuple[str, Layout, list[int], list[int]], target: Target) -> None:
    kernel, layout, loads, stores = problem
    chosen = plan(kernel, layout, loads, stores, target)
    check(chosen, layout)
    assert chosen.kernel == "tile"
    assert chosen.grid <= min(target.cores, 65535)
    assert plan_bytes(kernel, chosen, layout, loads, stores) <= BUDGET * target.unified_buffer_bytes


@given(problems(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_cuda_plans(problem: tuple[str, Layout, list[int], list[int]], aligned: bool) -> None:
    kernel, layout, loads, stores = problem
    chosen = plan(kernel, layout, loads, stores, CUDA, aligned=aligned)
    check(chosen, layout)
    assert chosen.rows & (chosen.rows - 1) == chosen.block & (chosen.block - 1) == 0
    assert chosen.num_warps in (1, 2, 4, 8, 16, 32)
    if chosen.kernel != "tile":
        assert layout.contiguous_rows
        assert chosen.vector == 16 // min(*loads, *stores)
    if chosen.kernel in ("ragged", "wide"):
        assert aligned
        assert layout.width >= chosen.vector
    if chosen.kernel == "wide":
        assert chosen.one_pass == (chosen.rows == 0) == (chosen.keep * chosen.block >= layout.width)


@pytest.mark.parametrize("target", ASCEND)
def test_ten_million_rows_stay_within_the_grid(target: Target) -> None:
    for width in (1, 7, 128, 50257):
        layout = row_layout((10**7, width), 1, [(width, 1)] * 2)
        assert layout is not None
        assert plan("softmax", layout, [2], [2], target).grid == target.cores


@pytest.mark.parametrize("target", ASCEND)
@pytest.mark.parametrize("rows", [1, 40, 49, 100, 1000, 12345])
def test_vector_cores_get_even_work(target: Target, rows: int) -> None:
    """Rounding tiles to a few sizes costs the busiest core a quarter of a tile at most."""
    layout = row_layout((rows, 256), 1, [(256, 1)] * 2)
    assert layout is not None
    chosen = plan("softmax", layout, [4], [4], target)
    busiest = -(-chosen.tiles // chosen.grid) * chosen.rows
    assert busiest <= 1.25 * -(-rows // target.cores) + chosen.rows / 4 + 1


def test_block_sizes_are_few_and_close() -> None:
    sizes = block_sizes(2**20)
    assert len(sizes) < 80
    assert all(power in sizes for power in (2**i for i in range(21)))
    assert all(b <= 1.25 * a for a, b in itertools.pairwise(sizes[4:]))
    assert all(block_for(w) >= w and (w <= 8 or block_for(w) < 1.25 * w) for w in range(1, 5000))


def test_a_wider_buffer_takes_wider_rows() -> None:
    for element_bytes in (12, 24, 44):
        small, large = (rows_per_tile(1024, element_bytes, t) for t in (ASCEND[0], ASCEND[2]))
        assert small < large
        assert rows_per_tile(2**20, element_bytes, ASCEND[2]) == 0


def test_generated_kernels_are_refused_what_does_not_fit() -> None:
    fits = plan_one_pass(1000, 1024, ASCEND[0], loads=[2, 2], stores=[2], live=4)
    assert fits is not None
    assert fits.one_pass
    assert plan_one_pass(1000, 16384, ASCEND[0], loads=[2, 2], stores=[2], live=4) is None
    more_live = plan_one_pass(10**6, 1024, ASCEND[0], loads=[2, 2], stores=[2], live=8)
    assert more_live is not None
    assert more_live.rows < fits.rows


def test_an_unknown_soc_is_named() -> None:
    with pytest.raises(ValueError, match="Ascend310P3"):
        ascend_target("Ascend310P3", 8)
