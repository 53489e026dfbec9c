"""CUDA kernels for contiguous rows of any width, read and written by whole 16-byte vectors. Ascend never runs these.

Rows of 197 or 50257 half-precision elements begin anywhere, so that plain loads fall apart into single elements. Here a
row is a head (less than a vector), a body of whole aligned vectors, and a tail. The body's mask ends at a multiple of
the vector, which Triton sees, and stays vectorised; head and tail are one small tile, masked element by element.
All tensors are contiguous and begin 16-byte aligned, so that one split fits them all: VECTOR is 16 bytes of the
narrowest. Rows are at least VECTOR wide.

`ragged`: whole rows in a tile. `wide`: a program per row, two sweeps, the second backwards over what the first left in
the caches. There a block is VECTORS × LANES elements and each lane keeps its own maximum and sum: nothing crosses
threads until the sweep is over.

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


@triton.jit(do_not_specialize=["rows"])
def softmax_wide(x_ptr, y_ptr, rows, width,
                 VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
                 LOG: tl.constexpr, SAFE: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    BLOCK: tl.constexpr = VECTORS * LANES
    base, body_end, edges, edge_mask = wide_row(tl.program_id(0), width, VECTOR)
    x_row = x_ptr + base
    y_row = y_ptr + base
    offsets = tl.arange(0, VECTORS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    x_edge = as_computed(tl.load(x_row + edges, mask=edge_mask, other=NEG_INF), y_ptr)
    m = tl.full((LANES,), NEG_INF, tl.float32)
    s = tl.zeros((LANES,), tl.float32)
    for start in range(0, body_end, BLOCK):
        mask = start + offsets < body_end
        x = tl.load(x_row + start + offsets, mask=mask, other=NEG_INF, eviction_policy="evict_last")
        x = as_computed(x, y_ptr)
        m_new = tl.maximum(m, tl.max(x, 0))
        shift = finite_maximum(m_new)
        s = s * exponential(m - shift, EXP) + tl.sum(exponential(x - shift[None, :], EXP), 0)
        m = m_new
    shift = finite_maximum(tl.maximum(tl.max(m, 0), tl.max(x_edge, 0)))
    x_edge = x_edge - shift
    e_edge = exponential(x_edge, EXP)
    factor = row_factor(tl.sum(s * exponential(m - shift, EXP), 0) + tl.sum(e_edge, 0), LOG, SAFE)
    y_edge = x_edge - factor if LOG else e_edge * factor
    tl.store(y_row + edges, y_edge.to(y_ptr.dtype.element_ty), mask=edge_mask)
    blocks = tl.cdiv(body_end, BLOCK)
    for i in range(0, blocks):
        start = (blocks - 1 - i) * BLOCK
        mask = start + offsets < body_end
        x = tl.load(x_row + start + offsets, mask=mask, other=NEG_INF, eviction_policy="evict_first")
        x = as_computed(x, y_ptr) - shift
        y = x - factor if LOG else exponential(x, EXP) * factor
        tl.store(y_row + start + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def softmax_backward_wide(g_ptr, y_ptr, d_ptr, rows, width,
                          VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
                          LOG: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    BLOCK: tl.constexpr = VECTORS * LANES
    base, body_end, edges, edge_mask = wide_row(tl.program_id(0), width, VECTOR)
    g_row = g_ptr + base
    y_row = y_ptr + base
    d_row = d_ptr + base
    offsets = tl.arange(0, VECTORS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    g_edge = tl.load(g_row + edges, mask=edge_mask, other=0.0).to(tl.float32)
    y_edge = tl.load(y_row + edges, mask=edge_mask, other=0.0).to(tl.float32)
    s = tl.zeros((LANES,), tl.float32)
    for start in range(0, body_end, BLOCK):
        mask = start + offsets < body_end
        g = tl.load(g_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if not LOG:
            y = tl.load(y_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_last")
            g = g * y.to(tl.float32)
        s += tl.sum(g, 0)
    total = tl.sum(s, 0) + tl.sum(backward_term(g_edge, y_edge, LOG), 0)
    d_edge = backward_result(g_edge, y_edge, total, LOG, EXP)
    tl.store(d_row + edges, d_edge.to(d_ptr.dtype.element_ty), mask=edge_mask)
    blocks = tl.cdiv(body_end, BLOCK)
    for i in range(0, blocks):
        start = (blocks - 1 - i) * BLOCK
        mask = start + offsets < body_end
        g = tl.load(g_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = tl.load(y_row + start + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        d = backward_result(g, y, total, LOG, EXP)
        tl.store(d_row + start + offsets, d.to(d_ptr.dtype.element_ty), mask=mask)
