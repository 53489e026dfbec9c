"""Launch plans: they cover every row, fit the device's memory by the model, and stay within the grid and int32."""

import ast
import itertools
import random
import re
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_npu import kernels
from thunder_npu.kernels import codegen
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
from thunder_npu.kernels.region import COLUMN, Node, Region, Tensor
from thunder_npu.kernels.region_kernel import RegionKernel

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


# ---- past 2^31 rows --------------------------------------------------------------------------------------------------
class Int32:
    """What `tl` means to the lines that find a tile's rows, on torch's integers, which wrap around as a device's do."""

    int32, int64 = torch.int32, torch.int64

    @staticmethod
    def minimum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.minimum(a, b)


def number(value: int) -> torch.Tensor:
    """A kernel's argument: int32 where the value fits, as Triton passes it."""
    return torch.tensor(value, dtype=torch.int32 if value < 2**31 else torch.int64)


FAR = [2**31 - 2048, 2**31 - 3, 2**31 - 1, 2**31, 2**31 + 2**20]


def scaled(rows: int, outer: int, repeats: bool = True) -> tuple[Region, list[tuple[int, ...]]]:
    """softmax(x · m) of rows of two elements, and strides: m repeats over an outer axis, or has gaps there."""
    places = ((rows, outer), (1, rows), COLUMN)
    x = Tensor((outer, rows, 2), torch.float16, places)
    m = Tensor((1, rows, 2), torch.float16, (None, *places[1:])) if repeats else x
    nodes = (
        Node("input", (), torch.float16, 0),
        Node("input", (), torch.float16, 1),
        Node("mul", (0, 1), torch.float16),
        Node("softmax", (2,), torch.float16),
    )
    return Region(outer * rows, 2, nodes, (x, m), ((3, x),)), [(2 * rows, 2, 1), (2 * rows + 2, 2, 1)]


@pytest.mark.parametrize("rows", FAR)
@pytest.mark.parametrize("target", [ASCEND[0], CUDA], ids=lambda t: t.kind)
def test_a_region_reaches_its_last_rows(rows: int, target: Target) -> None:
    """The last tile begins ROWS before the end: without outer axes, tile by tile of an outer index, and across them."""
    counted = set()
    for outer, repeats in ((1, True), (3, False), (3, True)):
        launch = codegen.prepare(*scaled(rows, outer, repeats), target)
        assert launch is not None
        functions = [f for f in ast.parse(launch.text).body if isinstance(f, ast.FunctionDef)]
        (function,) = (f for f in functions if f.name == codegen.KERNEL)
        names = [a.arg for a in function.args.args][3 : 3 + len(launch.sizes)]
        counted |= {*names} & {"row_tiles", "blocks"}
        body = function.body if target.kind == "cuda" else function.body[-1].body  # type: ignore[attr-defined]
        text = [ast.unparse(s) for s in body]
        found = {"tl": Int32, "ROWS": launch.plan.rows, "tile": number(launch.plan.tiles - 1)}
        found |= dict(zip(names, map(number, launch.sizes), strict=True))
        exec("\n".join(line for line in text if line.split(" = ")[0] in ("block", "row")), found)
        assert found["row"].item() == found["height"].item() - launch.plan.rows
        assert found["row"].dtype == torch.int64
    assert counted == {"row_tiles", "blocks"}


def test_only_regions_that_far_pay_for_it() -> None:
    launch = codegen.prepare(*scaled(2**31 - 4096, 3), ASCEND[0])
    assert launch is not None
    assert "to(tl.int64) * ROWS" not in launch.text


@pytest.mark.parametrize("rows", FAR)
@pytest.mark.parametrize("outer", [1, 3])
def test_a_softmax_reaches_its_last_rows(rows: int, outer: int) -> None:
    """tile_base, whatever the layout's outer axes."""
    tree = ast.parse(Path(kernels.__file__).with_name("tile_kernels.py").read_text())
    (base,) = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == "tile_base"]
    base.decorator_list = []
    names: dict[str, Any] = {"tl": Int32}
    for a in base.args.args:
        a.annotation = None
    exec(ast.unparse(base), names)
    for tile_rows in (1, 7, 1024, 2048):
        row_tiles = -(-rows // tile_rows)
        tile = number(outer * row_tiles - 1)
        found = names["tile_base"](tile, number(rows), 1, outer, 0, 0, 2**40, 1, tile_rows, outer > 1)
        assert found.item() == (outer - 1) * (2**40 if outer > 1 else 0) + rows - tile_rows


# ---- what a kernel can address ---------------------------------------------------------------------------------------
def some_axes(r: random.Random, lengths: list[int], width: int, kept: float = 1.0, permuted: float = 0.0) -> Tensor:
    """A tensor of rows over `lengths`: each axis there with probability `kept`, in another order with `permuted`."""
    steps = [prod(lengths[i + 1 :]) for i in range(len(lengths))]
    axes = [
        ((step, n), n) if n > 1 and r.random() < kept else (None, 1) for step, n in zip(steps, lengths, strict=True)
    ]
    if r.random() < permuted:
        r.shuffle(axes)
    return Tensor((*(n for _, n in axes), width), torch.float32, (*(p for p, _ in axes), COLUMN))


def test_what_fits_can_be_launched_and_what_does_not_says_why() -> None:
    """Random tensors over up to six axes: the question asked while a region grows is the launch's."""
    r = random.Random(0)
    reasons: Counter[str | None] = Counter()
    for _ in range(400):
        lengths = [r.choice((1, 2, 3, 5)) for _ in range(r.randint(1, 6))]
        width = r.choice((3, 16, 4096, 60000))
        inputs = (some_axes(r, lengths, width), some_axes(r, lengths, width, 0.6, 0.3))
        nodes = (
            Node("input", (), torch.float32, 0),
            Node("input", (), torch.float32, 1),
            Node("add", (0, 1), torch.float32),
            Node("softmax", (2,), torch.float32),
        )
        outputs = ((3, some_axes(r, lengths, width)), (2, some_axes(r, lengths, width, 1.0, 0.3)))
        region = Region(prod(lengths), width, nodes, inputs, outputs)
        for target in (ASCEND[0], CUDA):
            reason = codegen.unfit(region, target)
            reasons[reason] += 1
            kernel = RegionKernel(region)
            if reason is None:
                assert "def fused_rows" in kernel.source(target)
            else:
                with pytest.raises(ValueError, match=re.escape(reason)):
                    kernel.source(target)
    assert set(reasons) == {
        None,
        "its tile would outgrow the unified buffer",
        "no tile holds its rows",
        "its tensors agree on no fewer than 5 axes of rows; a kernel walks 4",
    }
    assert reasons[None] > 100
