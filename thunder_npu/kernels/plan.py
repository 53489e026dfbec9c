"""Launch plans: how a row-wise kernel is cut into tiles for a device.

One model serves every kernel, this package's own and the generated ones: what a tile of rows × columns costs in on-chip
memory, against what the device has. Pure functions of numbers; no torch, no triton, nothing is compiled or launched.

**Ascend.** A vector core works in its unified buffer, so the tile must fit there or the compiler silently gives up
double buffering. A tile costs, per element,

    2 · bytes of every load   (a tile that is read is double-buffered)
  + 4 for every store         (two buffers of a half-precision result; float32 leaves from where it was computed)
  + 4 · live                  (float32 tiles alive beside these; `LIVE` for our own kernels)

with `ROW_BYTES` per row for the row's own values (maximum, sum, …) and `TILE_BYTES` for odds and ends. Loads and stores
are counted per statement: a loop that reads its input twice pays twice. The inner axis is padded to 32 bytes, the unit
of the unified buffer. Rows read with gaps between neighbours cost `STRIDED_BYTES` per element more: each takes a unit
of its own. These are upper bounds of what BiShengIR 1.2.0 plans (benchmarks/ascend_compile.py holds them to it), and a
plan takes at most `BUDGET` of the buffer. As many programs run as there are vector cores; each loops over tiles.

**CUDA.** Registers and the bandwidth of the memory decide; the tables below were measured on an H200
(benchmarks/gpu_softmax.py), a program per tile. Narrow rows, those that are not 16-byte aligned and those too
wide for a tile have kernels of their own (vector_kernels.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .layout import TILE, TURNED, Layout

ASCEND_MAX_PROGRAMS = 65535
UNIFIED_BUFFER_BYTES = (("Ascend950", 253_952), ("Ascend910", 196_608))
BUDGET = 0.85
ROW_BYTES = 144
TILE_BYTES = 2048
ALIGNMENT = 32
MAX_ROWS = 2048
MAX_BLOCK = 16384
STRIDED_BYTES = {2: 272, 4: 240}
INT32_REACH = 2**30
"""Largest offset, in elements, between the first and the last row (or column) of a tile: two of them stay in int32."""

# Float32 tiles alive beside the buffers: kernel → (one pass, loop), each (all tensors float32, some half precision).
LIVE: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "softmax": ((0, 2), (0, 3)),
    "safe_softmax": ((0, 2), (0, 3)),
    "log_softmax": ((3, 3), (2, 3)),
    "softmax_backward": ((2, 3), (2, 5)),
    "log_softmax_backward": ((2, 3), (0, 4)),
}
# Which inputs the first sweep of the loop reads; the second reads all.
FIRST_SWEEP = {"softmax": 1, "safe_softmax": 1, "log_softmax": 1, "softmax_backward": 2, "log_softmax_backward": 1}


@dataclass(frozen=True)
class Target:
    """A device, as far as plans depend on it."""

    kind: Literal["ascend", "cuda"]
    name: str
    """SoC or GPU name, for messages."""
    cores: int
    """Vector cores of the NPU, multiprocessors of the GPU."""
    unified_buffer_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """A launch: `grid` programs share `tiles` tiles of `rows` × `block` elements.

    `rows` never exceeds the layout's row count: the last tile of an outer index is moved back over its neighbour, which
    then computes a few rows twice and needs no row mask. `one_pass`: a tile holds whole rows; otherwise the kernel
    sweeps over the columns twice. `masked`: the last block of columns is not full.
    """

    kernel: Literal["tile", "narrow", "ragged", "wide"]
    rows: int
    block: int
    one_pass: bool
    masked: bool
    tiles: int
    grid: int
    num_warps: int = 4
    vector: int = 0
    """CUDA: elements per 16 bytes of the narrowest tensor, for the kernels that read a row by whole vectors."""
    keep: int = 0
    """CUDA, "wide": blocks of `block` elements that stay in registers between the sweeps; `rows` others are a step."""
    registers: int = 0
    """CUDA: registers per thread at most; 0: what the compiler takes."""


def ascend_target(soc: str, vector_cores: int) -> Target:
    """The target of an Ascend SoC. Raises ValueError for a name whose unified buffer is not known."""
    for prefix, size in UNIFIED_BUFFER_BYTES:
        if soc.startswith(prefix):
            return Target("ascend", soc, vector_cores, size)
    raise ValueError(f"unknown SoC {soc!r}: its unified buffer is not in thunder_npu.kernels.plan.UNIFIED_BUFFER_BYTES")


def block_sizes(limit: int) -> list[int]:
    """Column blocks up to `limit`: four to an octave, for few compiled kernels and at most a fifth of padding."""
    sizes = [1, 2, 3, 4, 5, 6, 7, 8]
    while sizes[-1] < limit:
        step = 1 << (sizes[-1].bit_length() - 3)
        sizes.append(sizes[-1] + step)
    return [s for s in sizes if s <= limit]


def block_for(width: int) -> int:
    """The smallest block size that holds `width` columns."""
    return next(s for s in block_sizes(2 * width) if s >= width)


def bytes_per_element(loads: Sequence[int], stores: Sequence[int], live: int) -> int:
    """Unified-buffer bytes of one tile element: element sizes of all loads and stores, float32 tiles alive."""
    return 2 * sum(loads) + 4 * len(stores) + 4 * live


def tile_bytes(rows: int, block: int, element_bytes: int, units: tuple[int, int] = (1, 8)) -> int:
    """Unified-buffer bytes of a tile; `units`: the multiples to which its rows and its columns are padded."""
    padded_rows = _up(rows, units[0])
    return padded_rows * (_up(block, units[1]) * element_bytes + ROW_BYTES) + TILE_BYTES


def rows_per_tile(block: int, element_bytes: int, target: Target, units: tuple[int, int] = (1, 8)) -> int:
    """Rows of `block` columns that fit one tile on an Ascend target, a multiple of units[0]; 0 where none do."""
    row_bytes = _up(block, units[1]) * element_bytes + ROW_BYTES
    return min(MAX_ROWS, (_budget(target) - TILE_BYTES) // row_bytes // units[0] * units[0])


def plan_one_pass(
    rows: int,
    width: int,
    target: Target,
    *,
    loads: Sequence[int],
    stores: Sequence[int],
    live: int,
    nodes: int = 0,
    outer: int = 1,
) -> Plan | None:
    """A one-pass plan for a generated kernel over `outer` × `rows` contiguous rows; None where the row does not fit.

    Args:
        loads, stores: element sizes in bytes of every tile loaded or stored, one entry per statement.
        live: float32 tiles alive at once, upcast copies of half-precision loads included (Ascend).
        nodes: values that fill a tile (CUDA).
    """
    if target.kind == "cuda":
        return _cuda_region(rows, outer, width, max((2, *loads, *stores)), nodes)
    block = block_for(width)
    per_element = bytes_per_element(loads, stores, live)
    fit = rows_per_tile(block, per_element, target, (1, ALIGNMENT // min((4, *loads, *stores))))
    return _ascend(target, min(fit, rows), block, rows, outer, width, True) if fit else None


def plan(
    kernel: str, layout: Layout, loads: Sequence[int], stores: Sequence[int], target: Target, *, aligned: bool = True
) -> Plan:
    """The plan of one of our own kernels.

    Args:
        kernel: a key of `LIVE`.
        loads, stores: element sizes in bytes of the inputs and of the results, in the order of `layout.tensors`.
        aligned: every tensor begins at a multiple of 16 bytes.
    """
    if target.kind == "ascend":
        return _plan_ascend(kernel, layout, loads, stores, target)
    return _plan_cuda(kernel, layout, (*loads, *stores), aligned)


def _budget(target: Target) -> int:
    return int(BUDGET * target.unified_buffer_bytes)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def _reach(extent: int, strides: Sequence[int]) -> int:
    """How many rows (or columns) a tile may span with offsets in int32."""
    return max(1, min(extent, INT32_REACH // max(1, *strides)))


# ---- Ascend ----


def _element_bytes(
    kernel: str, layout: Layout, loads: Sequence[int], stores: Sequence[int], loop_rows: int | None = None
) -> int:
    """Model of one of our own kernels: in one pass, or with tiles of `loop_rows` rows in a loop over the columns."""
    every, one_pass = range(len(loads)), loop_rows is None
    sweeps = every if one_pass else (*range(FIRST_SWEEP[kernel]), *every)
    live = LIVE[kernel][0 if one_pass else 1][any(size < 4 for size in (*loads, *stores))]
    if layout.axis == 0:
        live += 1
    if any(layout.access(i, loop_rows) != TILE for i in every):
        live += 2 if one_pass else 4  # in each sweep, the tile before it is transposed or spread, and after
    gaps = sum(STRIDED_BYTES[loads[i]] for i in sweeps if layout.strided(i))
    return bytes_per_element([loads[i] for i in sweeps], stores, live) + gaps


def _units(layout: Layout, loads: Sequence[int], stores: Sequence[int]) -> tuple[int, int]:
    """What rows and columns are padded to: the inner axis to 32 bytes, both where a tile is transposed."""
    unit = ALIGNMENT // min((*loads, *stores))
    turned = any(layout.access(i) == TURNED for i in range(len(loads)))
    return (unit if layout.axis == 0 or turned else 1, unit if layout.axis == 1 or turned else 1)


def plan_bytes(kernel: str, chosen: Plan, layout: Layout, loads: Sequence[int], stores: Sequence[int]) -> int:
    """Unified-buffer bytes that the model gives one of our own plans: an upper bound of what the compiler plans."""
    element_bytes = _element_bytes(kernel, layout, loads, stores, None if chosen.one_pass else chosen.rows)
    return tile_bytes(chosen.rows, chosen.block, element_bytes, _units(layout, loads, stores))


def _plan_ascend(kernel: str, layout: Layout, loads: Sequence[int], stores: Sequence[int], target: Target) -> Plan:
    units = _units(layout, loads, stores)
    block = block_for(layout.width)
    column_reach = _reach(INT32_REACH, [s.column for s in layout.tensors])
    row_reach = _reach(layout.rows, [s.row for s in layout.tensors])
    fit = rows_per_tile(block, _element_bytes(kernel, layout, loads, stores), target, units)
    if fit and block <= column_reach:
        fit = min(fit, row_reach)
        return _ascend(target, fit, block, layout.rows, layout.outer_count, layout.width, True)
    # Too wide for one pass: a row at a time, or as many neighbouring rows as make a transfer of 128 bytes.
    rows = min(row_reach, 1 if units[0] == 1 else 4 * units[0])
    element_bytes = _element_bytes(kernel, layout, loads, stores, rows)
    longest = max(
        size
        for size in block_sizes(min(block, column_reach, MAX_BLOCK))
        if tile_bytes(rows, size, element_bytes, units) <= _budget(target)
    )
    # As many steps as that takes, of blocks as equal as the sizes allow; rather some more steps, if none needs a mask.
    even = block_for(-(-layout.width // -(-layout.width // longest)))
    exact = [size for size in block_sizes(longest) if 2 * size > longest and layout.width % size == 0]
    block = exact[-1] if exact else even
    return _ascend(target, rows, block, layout.rows, layout.outer_count, layout.width, False)


def _ascend(target: Target, fit: int, block: int, all_rows: int, outer: int, width: int, one_pass: bool) -> Plan:
    """Tiles of at most `fit` rows, of a size that gives every vector core the same number of tiles, or nearly."""
    rounds = -(-all_rows * outer // (fit * target.cores))
    even = -(-all_rows * outer // (rounds * target.cores))
    rows = min(block_for(even), block_sizes(fit)[-1])
    tiles = outer * -(-all_rows // rows)
    grid = min(tiles, target.cores, ASCEND_MAX_PROGRAMS)
    return Plan("tile", rows, block, one_pass, masked=width % block != 0, tiles=tiles, grid=grid)


# ---- CUDA: measured on an H200, by the size of the widest element ----

# (largest width, elements per tile, warps); 0 elements: a loop is faster. A row's tile is a power of two: shortly above
# one, half of it is idle.
Table = dict[int, tuple[tuple[int, int, int], ...]]
# (largest width, vectors per thread: kept in registers, and in a step of the loop; warps, registers)
WideTable = dict[int, tuple[tuple[int, int, int, int, int], ...]]
ANY_WIDTH = 2**62

_TILE: Table = {
    2: ((1, 1024, 2), (256, 1024, 4), (1024, 1024, 1), (2048, 2048, 4), (4096, 8192, 16), (6144, 0, 0),
        (8192, 8192, 16), (12288, 0, 0), (16384, 8192, 16)),
    4: ((1, 1024, 4), (128, 512, 4), (1024, 1024, 4), (8192, 4096, 16), (13312, 0, 0), (16384, 4096, 16), (24576, 0, 0),
        (32768, 32768, 32)),
}  # fmt: skip
_TILE_BACKWARD: Table = {
    2: ((1, 1024, 4), (256, 4096, 8), (1024, 1024, 2), (2048, 2048, 8), (4096, 8192, 8), (6144, 0, 0),
        (8192, 8192, 8), (24576, 0, 0), (32768, 32768, 16)),
    4: ((1, 1024, 4), (128, 4096, 32), (1024, 2048, 8), (2048, 4096, 16), (4096, 8192, 16), (16384, 16384, 32)),
}  # fmt: skip
# The sum of log_softmax's backward needs one input of two: a loop reads 3/2 of what a tile reads, softmax's 2.
_TILE_LOG_BACKWARD: Table = {
    2: (*_TILE_BACKWARD[2][:-2], (10240, 0, 0), (13312, 16384, 16), (16384, 16384, 8), *_TILE_BACKWARD[2][-2:]),
    4: (*_TILE_BACKWARD[4][:-1], (8192, 16384, 32), (13312, 0, 0), (16384, 16384, 32)),
}
_RAGGED: Table = {
    2: ((256, 2048, 2), (1024, 1024, 1), (4096, 2048, 2)),
    4: ((128, 512, 1), (1024, 1024, 1), (8192, 2048, 4)),
}
_RAGGED_BACKWARD: Table = {
    2: ((32, 512, 2), (512, 2048, 2), (1024, 2048, 1), (2048, 2048, 2), (4096, 4096, 4)),
    4: ((32, 512, 2), (1024, 1024, 2), (4096, 4096, 8), (16384, 16384, 16)),
}
_WIDE: WideTable = {
    2: ((6144, 0, 2, 4, 0), (10240, 0, 4, 4, 0), (13312, 2, 4, 8, 0), (24576, 0, 4, 8, 0), (40960, 0, 4, 16, 0),
        (98304, 8, 2, 16, 64), (ANY_WIDTH, 4, 4, 32, 0)),
    4: ((13312, 2, 2, 16, 0), (24576, 0, 4, 16, 0), (ANY_WIDTH, 0, 8, 32, 0)),
}  # fmt: skip
_WIDE_BACKWARD: WideTable = {
    2: ((10240, 0, 2, 8, 0), (13312, 2, 4, 8, 0), (16384, 0, 2, 16, 0), (24576, 4, 1, 16, 0), (98304, 0, 8, 32, 0),
        (ANY_WIDTH, 4, 2, 32, 0)),
    4: ((24576, 8, 1, 8, 0), (40960, 0, 8, 32, 0), (ANY_WIDTH, 4, 2, 32, 0)),
}  # fmt: skip
_WIDE_LOG_BACKWARD: WideTable = {
    2: ((10240, 0, 2, 8, 0), (24576, 0, 2, 16, 0), (98304, 2, 2, 32, 0), (ANY_WIDTH, 4, 4, 32, 0)),
    4: ((24576, 1, 2, 32, 0), (57344, 0, 8, 32, 0), (ANY_WIDTH, 4, 4, 32, 0)),
}
_TABLES = {
    "softmax_backward": (_TILE_BACKWARD, _RAGGED_BACKWARD, _WIDE_BACKWARD),
    "log_softmax_backward": (_TILE_LOG_BACKWARD, _RAGGED_BACKWARD, _WIDE_LOG_BACKWARD),
}
# Elements per tile and warps of narrow rows: of a power of two, of others read by vectors of 8 bytes, and dealt out one
# to a thread.
_NARROW_POWER = (1024, 4)
_NARROW = (2048, 4)
_NARROW_GATHERED = ((8, 2048, 4), (32, 2048, 2))
# Up to this width rows are dealt out (of a backward, two tensors: registers run short earlier); up to that one, read by
# vectors of 8 bytes.
_GATHERED_WIDTH = 32
_GATHERED_WIDTH_BACKWARD = 16
_NARROW_WIDTH = 128
# Generated kernels, measured with the chains of benchmarks/gpu_attention_chain.py. One warp holds whole rows: nothing
# goes through shared memory.
_REGION: Table = {
    2: ((512, 1024, 1), (1024, 2048, 2), (4096, 4096, 8), (16384, 16384, 16)),
    4: ((512, 512, 1), (1024, 1024, 4), (4096, 4096, 16), (16384, 16384, 16)),
}
# The same for half types where more nodes than this fill a tile: Gemma-2's soft-cap, and its backward.
_REGION_CROWDED = (
    (32, ((512, 512, 1), (1024, 1024, 2), (4096, 4096, 8), (16384, 16384, 16))),
    (16, ((512, 1024, 1), (1024, 1024, 2), (4096, 4096, 8), (16384, 16384, 16))),
)
# Elements of a tile that is not one run of memory, and the rows it should span to use whole sectors of 32 bytes.
_SCATTERED_ELEMENTS = 8192
_SCATTERED_ROWS = 32


def _entry(table: Table, size: int, width: int) -> tuple[int, int] | None:
    found = next(((amount, warps) for limit, amount, warps in table[max(2, size)] if width <= limit), None)
    return found if found and found[0] else None


def _plan_cuda(kernel: str, layout: Layout, sizes: Sequence[int], aligned: bool) -> Plan:
    widest, width = max(sizes), layout.width
    if not layout.contiguous_rows:
        return _cuda_scattered(layout, widest)
    vector = 16 // min(sizes)
    gathered = _GATHERED_WIDTH_BACKWARD if kernel in _TABLES else _GATHERED_WIDTH
    if width > 1 and width % 16 and width <= (gathered if width % (vector // 2) else _NARROW_WIDTH):
        return _cuda_narrow(layout, vector)
    tile, ragged, wide = _TABLES.get(kernel, (_TILE, _RAGGED, _WIDE))
    # Triton vectorises by strides that it knows to be multiples of 16 elements.
    plain = width % 16 == 0 or width == 1 or not aligned
    entry = _entry(tile if plain else ragged, widest, width)
    if entry and plain:
        return _cuda_tile_of(layout.rows, 1, width, *entry)
    if not aligned:
        return _cuda_scattered(layout, widest)
    rows = layout.rows
    if entry:
        elements, warps = entry
        block = _power_of_two(width // vector * vector)
        tile_rows = min(max(1, elements // block), _power_of_two_below(rows))
        tiles = -(-rows // tile_rows)
        return Plan("ragged", tile_rows, block, True, True, tiles, tiles, warps, vector)
    keep, vectors, warps, registers = next(entry for limit, *entry in wide[max(2, widest)] if width <= limit)
    lanes = 32 * warps * vector
    one_pass = keep * lanes >= width
    return Plan("wide", 0 if one_pass else vectors, lanes, one_pass, True, rows, rows, warps, vector, keep, registers)


def _cuda_narrow(layout: Layout, vector: int) -> Plan:
    block = _power_of_two(layout.width)
    if layout.width == block:
        elements, warps = _NARROW_POWER
    elif layout.width % (vector // 2) == 0:
        elements, warps = _NARROW
    else:
        elements, warps = next((elements, warps) for limit, elements, warps in _NARROW_GATHERED if block <= limit)
    rows = min(max(1, elements // block), _power_of_two_below(layout.rows))
    tiles = -(-layout.rows // rows)
    return Plan("narrow", rows, block, True, block != layout.width, tiles, tiles, warps, vector)


def _cuda_region(rows: int, outer: int, width: int, widest: int, nodes: int) -> Plan | None:
    """One pass for a generated kernel; None for a row that no tile of the tables holds."""
    crowded = next((table for least, table in _REGION_CROWDED if nodes > least), None)
    table = crowded if crowded and widest == 2 else _REGION[widest]
    entry = _entry({widest: table}, widest, _power_of_two(width))
    return _cuda_tile_of(rows, outer, width, *entry) if entry else None


def _cuda_tile_of(all_rows: int, outer: int, width: int, elements: int, warps: int) -> Plan:
    block = _power_of_two(width)
    rows = min(max(1, elements // block), _power_of_two_below(all_rows))
    tiles = outer * -(-all_rows // rows)
    return Plan("tile", rows, block, True, block != width, tiles, tiles, warps)


def _cuda_scattered(layout: Layout, widest: int) -> Plan:
    """Tiles of rows that lie apart, or across each other: a middle dimension, a transposed or a sliced tensor."""
    elements = _SCATTERED_ELEMENTS
    across = layout.axis == 0 or any(layout.access(i) == TURNED for i in range(len(layout.tensors)))
    block = min(
        _power_of_two(layout.width), _power_of_two_below(_reach(INT32_REACH, [s.column for s in layout.tensors]))
    )
    most_rows = _power_of_two_below(_reach(layout.rows, [s.row for s in layout.tensors]))
    rows = min(most_rows, max(_SCATTERED_ROWS if across else 1, elements // 4 // block))
    one_pass = block >= layout.width and block * rows <= 2 * elements
    if not one_pass:
        block = min(block, elements // rows)
    tiles = layout.outer_count * -(-layout.rows // rows)
    warps = max(1, min(16, block * rows // 512))
    return Plan("tile", rows, block, one_pass, layout.width % block != 0, tiles, tiles, warps)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _power_of_two_below(n: int) -> int:
    return 1 << (n.bit_length() - 1)
