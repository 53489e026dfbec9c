"""CUDA kernels for contiguous rows of any width, read and written by whole vectors. Ascend never runs these.

Rows of 197 or 50257 half-precision elements begin anywhere, so that plain loads fall apart into single elements. In
`ragged` and `wide` a row is a head (less than a vector), a body of whole aligned vectors, and a tail. The body's mask
ends at a multiple of the vector, which Triton sees, and stays vectorised; head and tail are one small tile, masked
element by element. All tensors are contiguous and begin 16-byte aligned, so that one split fits them all: VECTOR is 16
bytes of the narrowest. Rows are at least VECTOR wide.

`narrow`: a tile of rows is one run of memory, read whole and dealt out to the rows on chip, or row by row where rows
are multiples of 8 bytes. Needs no alignment, and the width is a constant of the kernel.

`ragged`: whole rows in a tile.

`wide`: a program per row, two sweeps, the second backwards over what the first left in the caches. There a block is
VECTORS × LANES elements, VECTOR neighbours to a thread, and each thread keeps its own maximum and sum: nothing crosses
threads until the sweep is over. The first KEEP × LANES elements stay in registers from the first sweep to the second,
in the dtype they have in memory; where that is the whole row, VECTORS is 0.

The mathematics and its helpers are those of tile_kernels.py.
"""

# mypy: disable-error-code=attr-defined, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from .tile_kernels import (
    NEG_INF,
    as_computed,
    backward_result,
    backward_term,
    exponential,
    finite_maximum,
    row_factor,
)


@triton.jit
def narrow_offsets(rows_left, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets and mask of a tile whose rows keep vectors of 8 bytes aligned."""
    row = tl.expand_dims(tl.arange(0, ROWS), 1)
    column = tl.expand_dims(tl.arange(0, BLOCK), 0)
    return row * WIDTH + column, (row < rows_left) & (column < WIDTH)


@triton.jit
def load_narrow(ptr, rows_left,
                WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):  # fmt: skip
    """ROWS rows of WIDTH elements, columns on axis 1, or on axis 0, a row to a thread, where they are gathered.

    What the columns from WIDTH on hold is unspecified.
    """
    if WIDTH % (VECTOR // 2) == 0:
        offsets, mask = narrow_offsets(rows_left, WIDTH, ROWS, BLOCK)
        return tl.load(ptr + offsets, mask=mask, other=0.0)
    else:
        LENGTH: tl.constexpr = ROWS * WIDTH
        n = tl.arange(0, triton.next_power_of_2(LENGTH))
        if rows_left >= ROWS:  # a mask that ends anywhere would cost the vectors
            x = tl.load(ptr + n, mask=n < LENGTH, other=0.0)
        else:
            x = tl.load(ptr + n, mask=n < rows_left * WIDTH, other=0.0)
        if WIDTH == BLOCK:
            return tl.reshape(x, [ROWS, BLOCK])
        else:
            column = tl.expand_dims(tl.minimum(tl.arange(0, BLOCK), WIDTH - 1), 1)
            place = tl.expand_dims(tl.arange(0, ROWS) * WIDTH, 0) + column
            return tl.reshape(tl.gather(x, tl.reshape(place, [BLOCK * ROWS]), 0), [BLOCK, ROWS])


@triton.jit
def store_narrow(ptr, y, rows_left,
                 WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):  # fmt: skip
    y = y.to(ptr.dtype.element_ty)
    if WIDTH % (VECTOR // 2) == 0:
        offsets, mask = narrow_offsets(rows_left, WIDTH, ROWS, BLOCK)
        tl.store(ptr + offsets, y, mask=mask)
    else:
        LENGTH: tl.constexpr = ROWS * WIDTH
        n = tl.arange(0, triton.next_power_of_2(LENGTH))
        y = tl.reshape(y, [BLOCK * ROWS])
        if WIDTH != BLOCK:
            row = n // WIDTH
            y = tl.gather(y, tl.minimum((n - row * WIDTH) * ROWS + row, BLOCK * ROWS - 1), 0)
        if rows_left >= ROWS:
            tl.store(ptr + n, y, mask=n < LENGTH)
        else:
            tl.store(ptr + n, y, mask=n < rows_left * WIDTH)


@triton.jit
def inside_narrow(x, other, AXIS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """x, with `other` in the columns from WIDTH on."""
    if WIDTH == BLOCK:
        return x
    else:
        return tl.where(tl.expand_dims(tl.arange(0, BLOCK) < WIDTH, 1 - AXIS), x, other)


@triton.jit
def sum_narrow(x, AXIS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The rows' sums. A thread that owns a row adds by fours: no element then takes part in more than 10 roundings.

    Added one after the other, 31 terms have twice the error of eager PyTorch's tree.
    """
    if AXIS == 0 and BLOCK > 8:
        return tl.sum(tl.sum(tl.reshape(x, [BLOCK // 4, 4, ROWS]), 1), 0)
    else:
        return tl.sum(x, AXIS)


@triton.jit(do_not_specialize=["rows"])
def softmax_narrow(x_ptr, y_ptr, rows,
                   WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
                   LOG: tl.constexpr, SAFE: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    AXIS: tl.constexpr = 1 if WIDTH % (VECTOR // 2) == 0 or WIDTH == BLOCK else 0
    first = tl.program_id(0).to(tl.int64) * ROWS
    left = tl.minimum(rows - first, ROWS).to(tl.int32)
    x = as_computed(load_narrow(x_ptr + first * WIDTH, left, WIDTH, ROWS, BLOCK, VECTOR), y_ptr)
    x = inside_narrow(x, NEG_INF, AXIS, WIDTH, BLOCK)
    x = x - tl.expand_dims(finite_maximum(tl.max(x, AXIS)), AXIS)
    e = exponential(x, EXP)
    factor = tl.expand_dims(row_factor(sum_narrow(e, AXIS, ROWS, BLOCK), LOG, SAFE), AXIS)
    y = x - factor if LOG else e * factor
    store_narrow(y_ptr + first * WIDTH, y, left, WIDTH, ROWS, BLOCK, VECTOR)


@triton.jit(do_not_specialize=["rows"])
def softmax_backward_narrow(g_ptr, y_ptr, d_ptr, rows,
                            WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
                            LOG: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    AXIS: tl.constexpr = 1 if WIDTH % (VECTOR // 2) == 0 or WIDTH == BLOCK else 0
    first = tl.program_id(0).to(tl.int64) * ROWS
    left = tl.minimum(rows - first, ROWS).to(tl.int32)
    g = load_narrow(g_ptr + first * WIDTH, left, WIDTH, ROWS, BLOCK, VECTOR).to(tl.float32)
    y = load_narrow(y_ptr + first * WIDTH, left, WIDTH, ROWS, BLOCK, VECTOR).to(tl.float32)
    terms = inside_narrow(backward_term(g, y, LOG), 0.0, AXIS, WIDTH, BLOCK)
    total = sum_narrow(terms, AXIS, ROWS, BLOCK)
    d = backward_result(g, y, tl.expand_dims(total, AXIS), LOG, EXP)
    store_narrow(d_ptr + first * WIDTH, d, left, WIDTH, ROWS, BLOCK, VECTOR)


@triton.jit
def edge_offsets(start, body_start, body_end, end, VECTOR: tl.constexpr):
    """Offsets and mask of a row's head and tail: 2·VECTOR lanes, the head from `start`, the tail from `body_end`."""
    lane = tl.arange(0, 2 * VECTOR)
    in_head = lane < VECTOR
    offsets = tl.where(in_head, start, body_end - VECTOR) + lane
    return offsets, offsets < tl.where(in_head, body_start, end)


@triton.jit
def ragged_tile(tile, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """64-bit base of a tile, then offsets and masks of its rows' bodies and edges."""
    first = tl.minimum(tile.to(tl.int64) * ROWS, rows - ROWS) * width
    base = first // VECTOR * VECTOR
    start = tl.expand_dims((first - base).to(tl.int32) + tl.arange(0, ROWS) * width, 1)
    end = start + width
    body_start = (start + VECTOR - 1) // VECTOR * VECTOR
    body_end = end // VECTOR * VECTOR
    column = tl.expand_dims(tl.arange(0, BLOCK), 0)
    edges, edge_mask = edge_offsets(start, body_start, body_end, end, VECTOR)
    return base, body_start + column, column < body_end - body_start, edges, edge_mask


@triton.jit(do_not_specialize=["rows"])
def softmax_ragged(x_ptr, y_ptr, rows, width,
                   ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
                   LOG: tl.constexpr, SAFE: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    base, body, body_mask, edges, edge_mask = ragged_tile(tl.program_id(0), rows, width, ROWS, BLOCK, VECTOR)
    x = as_computed(tl.load(x_ptr + base + body, mask=body_mask, other=NEG_INF), y_ptr)
    x_edge = as_computed(tl.load(x_ptr + base + edges, mask=edge_mask, other=NEG_INF), y_ptr)
    m = tl.expand_dims(finite_maximum(tl.maximum(tl.max(x, 1), tl.max(x_edge, 1))), 1)
    x = x - m
    x_edge = x_edge - m
    e = exponential(x, EXP)
    e_edge = exponential(x_edge, EXP)
    factor = tl.expand_dims(row_factor(tl.sum(e, 1) + tl.sum(e_edge, 1), LOG, SAFE), 1)
    y = x - factor if LOG else e * factor
    y_edge = x_edge - factor if LOG else e_edge * factor
    tl.store(y_ptr + base + body, y.to(y_ptr.dtype.element_ty), mask=body_mask)
    tl.store(y_ptr + base + edges, y_edge.to(y_ptr.dtype.element_ty), mask=edge_mask)


@triton.jit(do_not_specialize=["rows"])
def softmax_backward_ragged(g_ptr, y_ptr, d_ptr, rows, width,
                            ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
                            LOG: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    base, body, body_mask, edges, edge_mask = ragged_tile(tl.program_id(0), rows, width, ROWS, BLOCK, VECTOR)
    g = tl.load(g_ptr + base + body, mask=body_mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + base + body, mask=body_mask, other=0.0).to(tl.float32)
    g_edge = tl.load(g_ptr + base + edges, mask=edge_mask, other=0.0).to(tl.float32)
    y_edge = tl.load(y_ptr + base + edges, mask=edge_mask, other=0.0).to(tl.float32)
    total = tl.sum(backward_term(g, y, LOG), 1) + tl.sum(backward_term(g_edge, y_edge, LOG), 1)
    total = tl.expand_dims(total, 1)
    d = backward_result(g, y, total, LOG, EXP)
    d_edge = backward_result(g_edge, y_edge, total, LOG, EXP)
    tl.store(d_ptr + base + body, d.to(d_ptr.dtype.element_ty), mask=body_mask)
    tl.store(d_ptr + base + edges, d_edge.to(d_ptr.dtype.element_ty), mask=edge_mask)


@triton.jit
def wide_row(row, width, VECTOR: tl.constexpr):
    """64-bit base of a row's body (aligned) and its length, then offsets and mask of the row's edges from that base."""
    first = row.to(tl.int64) * width
    base = (first + VECTOR - 1) // VECTOR * VECTOR
    start = (first - base).to(tl.int32)
    body_end = (start + width) // VECTOR * VECTOR
    edges, edge_mask = edge_offsets(start, 0, body_end, start + width, VECTOR)
    return base, body_end, edges, edge_mask


@triton.jit
def wide_offsets(VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr):
    """Offsets of VECTORS × LANES elements, as threads × vectors × elements of a vector.

    Threads come first: Triton then gives neighbouring threads neighbouring vectors.
    """
    thread = tl.arange(0, LANES // VECTOR)[:, None, None] * VECTOR
    vector = tl.arange(0, VECTORS)[None, :, None] * LANES
    return thread + vector + tl.arange(0, VECTOR)[None, None, :]


@triton.jit
def thread_max(x):
    return tl.max(tl.max(x, 2), 1)


@triton.jit
def thread_sum(x):
    return tl.sum(tl.sum(x, 2), 1)


@triton.jit
def again(x):
    """x, as if read anew: what is computed from it is not kept, as the compiler else would, for the next use of x.

    So what stays in registers between two uses is two half-precision values in one, not two float32 copies.
    """
    if x.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], x.dtype, False, 2)
    else:
        return x


@triton.jit(do_not_specialize=["rows"])
def softmax_wide(x_ptr, y_ptr, rows, width,
                 KEEP: tl.constexpr, VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
                 LOG: tl.constexpr, SAFE: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    KEPT: tl.constexpr = KEEP * LANES
    base, body_end, edges, edge_mask = wide_row(tl.program_id(0), width, VECTOR)
    x_row = x_ptr + base
    y_row = y_ptr + base
    if KEEP:
        kept_offsets = wide_offsets(KEEP, LANES, VECTOR)
        kept_mask = kept_offsets < body_end
        kept = tl.load(x_row + kept_offsets, mask=kept_mask, other=NEG_INF, eviction_policy="evict_first")
    x_edge = as_computed(tl.load(x_row + edges, mask=edge_mask, other=NEG_INF), y_ptr)
    if KEEP:
        m = thread_max(as_computed(again(kept), y_ptr))
        shift = finite_maximum(m)
        s = thread_sum(exponential(as_computed(again(kept), y_ptr) - shift[:, None, None], EXP))
    else:
        m = tl.full((LANES // VECTOR,), NEG_INF, tl.float32)
        s = tl.zeros((LANES // VECTOR,), tl.float32)
    if VECTORS:
        BLOCK: tl.constexpr = VECTORS * LANES
        offsets = wide_offsets(VECTORS, LANES, VECTOR)
        for start in range(KEPT, body_end, BLOCK):
            mask = start + offsets < body_end
            x = tl.load(x_row + start + offsets, mask=mask, other=NEG_INF, eviction_policy="evict_last")
            x = as_computed(x, y_ptr)
            m_new = tl.maximum(m, thread_max(x))
            shift = finite_maximum(m_new)
            s = s * exponential(m - shift, EXP) + thread_sum(exponential(x - shift[:, None, None], EXP))
            m = m_new
    shift = finite_maximum(tl.maximum(tl.max(m, 0), tl.max(x_edge, 0)))
    x_edge = x_edge - shift
    e_edge = exponential(x_edge, EXP)
    factor = row_factor(tl.sum(s * exponential(m - shift, EXP), 0) + tl.sum(e_edge, 0), LOG, SAFE)
    y_edge = x_edge - factor if LOG else e_edge * factor
    tl.store(y_row + edges, y_edge.to(y_ptr.dtype.element_ty), mask=edge_mask)
    if VECTORS:
        blocks = tl.cdiv(body_end - KEPT, BLOCK)
        for i in range(0, blocks):
            start = KEPT + (blocks - 1 - i) * BLOCK
            mask = start + offsets < body_end
            x = tl.load(x_row + start + offsets, mask=mask, other=NEG_INF, eviction_policy="evict_first")
            x = as_computed(x, y_ptr) - shift
            y = x - factor if LOG else exponential(x, EXP) * factor
            tl.store(y_row + start + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)
    if KEEP:
        x = as_computed(again(kept), y_ptr) - shift
        y = x - factor if LOG else exponential(x, EXP) * factor
        tl.store(y_row + kept_offsets, y.to(y_ptr.dtype.element_ty), mask=kept_mask)


@triton.jit(do_not_specialize=["rows"])
def softmax_backward_wide(g_ptr, y_ptr, d_ptr, rows, width,
                          KEEP: tl.constexpr, VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
                          LOG: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    KEPT: tl.constexpr = KEEP * LANES
    base, body_end, edges, edge_mask = wide_row(tl.program_id(0), width, VECTOR)
    g_row = g_ptr + base
    y_row = y_ptr + base
    d_row = d_ptr + base
    if KEEP:
        kept_offsets = wide_offsets(KEEP, LANES, VECTOR)
        kept_mask = kept_offsets < body_end
        kept = tl.load(g_row + kept_offsets, mask=kept_mask, other=0.0, eviction_policy="evict_first")
        if not LOG:
            kept_y = tl.load(y_row + kept_offsets, mask=kept_mask, other=0.0, eviction_policy="evict_first")
    g_edge = tl.load(g_row + edges, mask=edge_mask, other=0.0).to(tl.float32)
    y_edge = tl.load(y_row + edges, mask=edge_mask, other=0.0).to(tl.float32)
    if KEEP:
        term = again(kept).to(tl.float32)
        s = thread_sum(term if LOG else term * again(kept_y).to(tl.float32))
    else:
        s = tl.zeros((LANES // VECTOR,), tl.float32)
    if VECTORS:
        BLOCK: tl.constexpr = VECTORS * LANES
        offsets = wide_offsets(VECTORS, LANES, VECTOR)
        for start in range(KEPT, body_end, BLOCK):
            mask = start + offsets < body_end
            g = tl.load(g_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
            if not LOG:
                y = tl.load(y_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_last")
                g = g * y.to(tl.float32)
            s += thread_sum(g)
    total = tl.sum(s, 0) + tl.sum(backward_term(g_edge, y_edge, LOG), 0)
    d_edge = backward_result(g_edge, y_edge, total, LOG, EXP)
    tl.store(d_row + edges, d_edge.to(d_ptr.dtype.element_ty), mask=edge_mask)
    if VECTORS:
        blocks = tl.cdiv(body_end - KEPT, BLOCK)
        for i in range(0, blocks):
            start = KEPT + (blocks - 1 - i) * BLOCK
            mask = start + offsets < body_end
            g = tl.load(g_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            y = tl.load(y_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            d = backward_result(g, y, total, LOG, EXP)
            tl.store(d_row + start + offsets, d.to(d_ptr.dtype.element_ty), mask=mask)
    if KEEP:
        if LOG:  # the first sweep did not read y
            kept_y = tl.load(y_row + kept_offsets, mask=kept_mask, other=0.0, eviction_policy="evict_first")
        d = backward_result(again(kept).to(tl.float32), again(kept_y).to(tl.float32), total, LOG, EXP)
        tl.store(d_row + kept_offsets, d.to(d_ptr.dtype.element_ty), mask=kept_mask)
