"""The portable Triton kernels: rows of any layout, on Ascend through triton-ascend and on CUDA through upstream Triton.

A program loops over tiles of ROWS × BLOCK elements. Rows are complete in a tile (ONE_PASS), or the columns are swept
twice, first for the row's maximum and sum, then for the result. 64-bit arithmetic is scalar and done once per tile or
block; everything inside a tile is int32. What the parameters are is said once, in layout.py and plan.py.

Softmax of a row, here and in vector_kernels.py: with m the maximum, or 0 where the maximum is -inf, and
s = Σ exp(x − m), the result is exp(x − m)/s. A row of nothing but -inf has s = 0, hence 0/0 = NaN, as eager PyTorch;
the safe softmax divides by 1 there and gives zeros. s = 0 happens in no other row: a finite maximum contributes
exp(0) = 1, and NaN or +inf make s NaN. So the guard costs one select per row, not per element, and no traffic.
"""

# mypy: disable-error-code=attr-defined, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

NEG_INF = tl.constexpr(float("-inf"))
LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_LOW = tl.constexpr(1.925963033500011e-08)  # log2(e) minus its float32 value
LN2 = tl.constexpr(0.6931471805599453)
# EXP, as in launch.py: tl.exp; tl.exp2, on CUDA one instruction where tl.exp is several; the latter made exact.
NATIVE = tl.constexpr(0)
EXP2 = tl.constexpr(1)
EXP2_PRECISE = tl.constexpr(2)
# Access codes, as in layout.py; TILE is 0, those from PER_ROW on are spread over the tile.
TURNED = tl.constexpr(1)
PER_ROW = tl.constexpr(2)
PER_COLUMN = tl.constexpr(3)
SCALAR = tl.constexpr(4)


@triton.jit
def exponential(t, EXP: tl.constexpr):
    """exp(t) for t ≤ 0, in the way that launch.py chooses for the device and the result's dtype."""
    if EXP == NATIVE:
        return tl.exp(t)
    else:
        high = t * LOG2E
        e = tl.exp2(high)
        if EXP == EXP2_PRECISE:
            # What rounding t·log2(e) lost: at t = -20 a digit of float32.
            low = tl.fma(t, LOG2E, -high) + t * LOG2E_LOW
            e = e + e * (tl.where(high > NEG_INF, low, 0.0) * LN2)
        return e


@triton.jit
def finite_maximum(m):
    """The maximum to subtract: 0 for a row (or a first part of a row) of nothing but -inf, where -inf − -inf is NaN."""
    return tl.where(m == NEG_INF, 0.0, m)


@triton.jit
def row_factor(s, LOG: tl.constexpr, SAFE: tl.constexpr):
    """What a row's sum does to each element: subtract log s, or multiply by 1/s."""
    if LOG:
        return tl.log(s)
    else:
        if SAFE:
            s = tl.where(s == 0.0, 1.0, s)
        return 1.0 / s


@triton.jit
def backward_term(g, y, LOG: tl.constexpr):
    """What a row's sum is made of: g, or g·y."""
    if LOG:
        return g
    else:
        return g * y


@triton.jit
def backward_result(g, y, total, LOG: tl.constexpr, EXP: tl.constexpr):
    """The input's gradient, from the row's total of `backward_term`: g − exp(y)·Σg, or g·y − y·Σ(g·y).

    The two products nearly cancel where y ≈ (1, 0, …). CUDA fuses the second into the subtraction, as eager PyTorch
    does (PersistentSoftmax.cuh), and that is not left to the compiler: with the first fused, or none, rows of two have
    up to 1.7 times eager's error (root mean square against float64), this way 1.2 times.
    """
    if LOG:
        return g - exponential(y, EXP) * total
    elif EXP == NATIVE:
        return g * y - y * total
    else:
        return tl.fma(y, -total, g * y)


@triton.jit
def as_computed(x, y_ptr):
    """An input as float32, rounded to the result's dtype first: `dtype=` casts before it computes."""
    if x.dtype == y_ptr.dtype.element_ty:
        return x.to(tl.float32)
    else:
        return x.to(tl.float32).to(y_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def tile_base(tile, rows, o1, o2, s0, s1, s2, row_stride, ROWS: tl.constexpr, OUTER: tl.constexpr):
    """Offset of a tile's first row, in int64 elements. The last tile of an outer index is moved back to end with it.

    OUTER: there are outer axes. Without them a program is spared four integer divisions, which it would wait for.
    No number but a row's (up to rows + ROWS) exceeds the number of tiles: all others stay in its type.
    """
    if OUTER:
        row_tiles = (rows - 1) // ROWS + 1
        outer = tile // row_tiles
        first = tl.minimum((tile % row_tiles).to(tl.int64) * ROWS, rows - ROWS)
        i2 = outer % o2
        i1 = (outer // o2) % o1
        i0 = outer // o2 // o1
        return i0.to(tl.int64) * s0 + i1.to(tl.int64) * s1 + i2.to(tl.int64) * s2 + first * row_stride
    else:
        return tl.minimum(tile.to(tl.int64) * ROWS, rows - ROWS) * row_stride


@triton.jit
def tile_offsets(row_stride, column_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, AXIS: tl.constexpr):
    """int32 offsets of a tile's elements from its base, columns on AXIS."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    return tl.expand_dims(row * row_stride, AXIS) + tl.expand_dims(column * column_stride, 1 - AXIS)


@triton.jit
def load_tile(ptr, width, other, row_stride, column_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr,
              AXIS: tl.constexpr, MASKED: tl.constexpr, ACCESS: tl.constexpr, ASCEND: tl.constexpr):  # fmt: skip
    """A tile with its columns on AXIS. Spread values come as float32.

    Columns from `width` on read as `other`; None: they are never looked at. On Ascend that spares filling the tile
    first, by an argument of tl.load that upstream Triton does not have.
    """
    if ACCESS >= PER_ROW:
        if ACCESS == SCALAR:
            x = tl.load(ptr).to(tl.float32)
        elif ACCESS == PER_ROW:
            x = tl.expand_dims(tl.load(ptr + tl.arange(0, ROWS) * row_stride).to(tl.float32), AXIS)
        else:
            column = tl.arange(0, BLOCK)
            x = tl.load(ptr + column * column_stride, mask=column < width).to(tl.float32)
            x = tl.expand_dims(x, 1 - AXIS)
        x = tl.broadcast_to(x, [ROWS, BLOCK] if AXIS == 1 else [BLOCK, ROWS])
        if MASKED and other is not None:
            x = tl.where(tl.expand_dims(tl.arange(0, BLOCK) < width, 1 - AXIS), x, other)
        return x
    else:
        READ: tl.constexpr = 1 - AXIS if ACCESS == TURNED else AXIS
        offsets = tile_offsets(row_stride, column_stride, ROWS, BLOCK, READ)
        mask = tl.expand_dims(tl.arange(0, BLOCK) < width, 1 - READ)
        if not MASKED:
            x = tl.load(ptr + offsets)
        elif other is not None:
            x = tl.load(ptr + offsets, mask=mask, other=other)
        elif ASCEND:
            x = tl.load(ptr + offsets, mask=mask, care_padding=False)
        else:
            x = tl.load(ptr + offsets, mask=mask)
        if ACCESS == TURNED:
            x = tl.trans(x)
        return x


@triton.jit
def store_tile(ptr, x, width, row_stride, column_stride,
               ROWS: tl.constexpr, BLOCK: tl.constexpr, AXIS: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    offsets = tile_offsets(row_stride, column_stride, ROWS, BLOCK, AXIS)
    if MASKED:
        mask = tl.expand_dims(tl.arange(0, BLOCK) < width, 1 - AXIS)
        tl.store(ptr + offsets, x.to(ptr.dtype.element_ty), mask=mask)
    else:
        tl.store(ptr + offsets, x.to(ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["tiles", "o1", "o2"])
def softmax_tiles(x_ptr, y_ptr, tiles, rows, width, o1, o2,
                  x_s0, x_s1, x_s2, x_row, x_column, y_s0, y_s1, y_s2, y_row, y_column,
                  ROWS: tl.constexpr, BLOCK: tl.constexpr, AXIS: tl.constexpr, ONE_PASS: tl.constexpr,
                  MASKED: tl.constexpr, OUTER: tl.constexpr, X_ACCESS: tl.constexpr, LOG: tl.constexpr,
                  SAFE: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    """y = softmax, log-softmax (LOG) or safe softmax (SAFE) of the rows of x."""
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        x_tile = x_ptr + tile_base(tile, rows, o1, o2, x_s0, x_s1, x_s2, x_row, ROWS, OUTER)
        y_tile = y_ptr + tile_base(tile, rows, o1, o2, y_s0, y_s1, y_s2, y_row, ROWS, OUTER)
        if ONE_PASS:
            x = load_tile(x_tile, width, NEG_INF, x_row, x_column, ROWS, BLOCK, AXIS, MASKED, X_ACCESS, EXP == NATIVE)
            x = as_computed(x, y_ptr)
            x = x - tl.expand_dims(finite_maximum(tl.max(x, AXIS)), AXIS)
            e = exponential(x, EXP)
            factor = tl.expand_dims(row_factor(tl.sum(e, AXIS), LOG, SAFE), AXIS)
            y = x - factor if LOG else e * factor
            store_tile(y_tile, y, width, y_row, y_column, ROWS, BLOCK, AXIS, MASKED)
        else:
            m = tl.full((ROWS,), NEG_INF, tl.float32)
            s = tl.zeros((ROWS,), tl.float32)
            for start in range(0, width, BLOCK):
                x = load_tile(x_tile + start.to(tl.int64) * x_column, width - start, NEG_INF, x_row, x_column,
                              ROWS, BLOCK, AXIS, MASKED, X_ACCESS, EXP == NATIVE)  # fmt: skip
                x = as_computed(x, y_ptr)
                m_new = tl.maximum(m, tl.max(x, AXIS))
                shift = finite_maximum(m_new)
                e = exponential(x - tl.expand_dims(shift, AXIS), EXP)
                s = s * exponential(m - shift, EXP) + tl.sum(e, AXIS)
                m = m_new
            shift = tl.expand_dims(finite_maximum(m), AXIS)
            factor = tl.expand_dims(row_factor(s, LOG, SAFE), AXIS)
            for start in range(0, width, BLOCK):
                x = load_tile(x_tile + start.to(tl.int64) * x_column, width - start, None, x_row, x_column,
                              ROWS, BLOCK, AXIS, MASKED, X_ACCESS, EXP == NATIVE)  # fmt: skip
                x = as_computed(x, y_ptr) - shift
                y = x - factor if LOG else exponential(x, EXP) * factor
                store_tile(y_tile + start.to(tl.int64) * y_column, y, width - start, y_row, y_column,
                           ROWS, BLOCK, AXIS, MASKED)  # fmt: skip


@triton.jit(do_not_specialize=["tiles", "o1", "o2"])
def softmax_backward_tiles(g_ptr, y_ptr, d_ptr, tiles, rows, width, o1, o2,
                           g_s0, g_s1, g_s2, g_row, g_column, y_s0, y_s1, y_s2, y_row, y_column,
                           d_s0, d_s1, d_s2, d_row, d_column,
                           ROWS: tl.constexpr, BLOCK: tl.constexpr, AXIS: tl.constexpr, ONE_PASS: tl.constexpr,
                           MASKED: tl.constexpr, OUTER: tl.constexpr, G_ACCESS: tl.constexpr, Y_ACCESS: tl.constexpr,
                           LOG: tl.constexpr, EXP: tl.constexpr):  # fmt: skip
    """d = gradient of the input, from that of the result (g) and the result (y)."""
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        g_tile = g_ptr + tile_base(tile, rows, o1, o2, g_s0, g_s1, g_s2, g_row, ROWS, OUTER)
        y_tile = y_ptr + tile_base(tile, rows, o1, o2, y_s0, y_s1, y_s2, y_row, ROWS, OUTER)
        d_tile = d_ptr + tile_base(tile, rows, o1, o2, d_s0, d_s1, d_s2, d_row, ROWS, OUTER)
        if ONE_PASS:
            g = load_tile(g_tile, width, 0.0, g_row, g_column, ROWS, BLOCK, AXIS, MASKED, G_ACCESS, EXP == NATIVE).to(
                tl.float32
            )
            y = load_tile(y_tile, width, 0.0, y_row, y_column, ROWS, BLOCK, AXIS, MASKED, Y_ACCESS, EXP == NATIVE).to(
                tl.float32
            )
            total = tl.expand_dims(tl.sum(backward_term(g, y, LOG), AXIS), AXIS)
            d = backward_result(g, y, total, LOG, EXP)
            store_tile(d_tile, d, width, d_row, d_column, ROWS, BLOCK, AXIS, MASKED)
        else:
            s = tl.zeros((ROWS,), tl.float32)
            for start in range(0, width, BLOCK):
                offset = start.to(tl.int64)
                g = load_tile(g_tile + offset * g_column, width - start, 0.0, g_row, g_column,
                              ROWS, BLOCK, AXIS, MASKED, G_ACCESS, EXP == NATIVE).to(tl.float32)  # fmt: skip
                if not LOG:
                    g = g * load_tile(y_tile + offset * y_column, width - start, 0.0, y_row, y_column,
                                      ROWS, BLOCK, AXIS, MASKED, Y_ACCESS, EXP == NATIVE).to(tl.float32)  # fmt: skip
                s += tl.sum(g, AXIS)
            s = tl.expand_dims(s, AXIS)
            for start in range(0, width, BLOCK):
                offset = start.to(tl.int64)
                g = load_tile(g_tile + offset * g_column, width - start, None, g_row, g_column,
                              ROWS, BLOCK, AXIS, MASKED, G_ACCESS, EXP == NATIVE).to(tl.float32)  # fmt: skip
                y = load_tile(y_tile + offset * y_column, width - start, None, y_row, y_column,
                              ROWS, BLOCK, AXIS, MASKED, Y_ACCESS, EXP == NATIVE).to(tl.float32)  # fmt: skip
                # On Ascend y·(g − s) instead, an instruction less: g·y is not at hand here.
                d = backward_result(g, y, s, LOG, EXP) if LOG or EXP != NATIVE else y * (g - s)
                store_tile(d_tile + offset * d_column, d, width - start, d_row, d_column,
                           ROWS, BLOCK, AXIS, MASKED)  # fmt: skip
