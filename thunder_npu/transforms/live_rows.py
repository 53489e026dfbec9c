"""Proofs that a mask leaves something in every row of the scores under it: a softmax of them then needs no guard.

A row is dead if it holds only -inf. Two kinds of mask cannot make a row dead:

* a finite one: a fill value or an additive constant above -inf, such as -10000 or ``finfo.min``;
* a causal one: -inf above (or below) a diagonal that keeps at least one column of every row, as ``tril`` does.

What is assumed, and nothing else: the scores under the mask are ordinary numbers, above -inf and below √finfo.max in
magnitude (256 in float16, 1.8e19 in float32 and bfloat16), as long as the trace does not show where a -inf could come
from. Scores that another tensor was added to (a second mask, a bias), or that were filled with -inf before, are not
ordinary, and neither is the result of any operation this module does not know; there the guard stays. A float16 score
plus ``finfo.min`` may round to -inf, hence the bound. Nothing here looks at run-time values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes, prims
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_npu.transforms.rewrite import Producers

_INF = math.inf
Interval = tuple[float, float]
_ANYTHING: Interval = (-_INF, _INF)

CASTS = frozenset({ltorch.to.id, ltorch.type_as.id, prims.PrimIDs.CONVERT_ELEMENT_TYPE}) | {
    f"Tensor.{name}" for name in ("half", "float", "double", "bfloat16", "bool")
}
# Operations that keep the elements in their row-major order, or repeat them.
RESHAPES = frozenset({ltorch.unsqueeze.id, ltorch.view.id, ltorch.reshape.id, ltorch.squeeze.id, ltorch.contiguous.id})
EXPANDS = frozenset({ltorch.expand.id, ltorch.expand_as.id})
MOVES = RESHAPES | EXPANDS | {ltorch.transpose.id, ltorch.permute.id, ltorch.t.id, ltorch.movedim.id, ltorch.getitem.id}
_PRODUCTS = frozenset({ltorch.matmul.id, ltorch.bmm.id, ltorch.baddbmm.id, ltorch.einsum.id, ltorch.linear.id})
# A proof of more symbols than this is given up. A mask takes about ten; a chain of elementwise operations must not
# exhaust the stack, nor sums of sums take exponential time.
_LONGEST = 100
_BOUNDED = frozenset({ltorch.tanh.id, ltorch.sigmoid.id, ltorch._softmax.id})
_COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    ltorch.eq.id: operator.eq,
    ltorch.ne.id: operator.ne,
    ltorch.lt.id: operator.lt,
    ltorch.le.id: operator.le,
    ltorch.gt.id: operator.gt,
    ltorch.ge.id: operator.ge,
}
# column − row compared with 0, as an interval of integers
_COLUMN_MINUS_ROW: dict[Any, Interval] = {
    ltorch.le.id: (-_INF, 0),
    ltorch.lt.id: (-_INF, -1),
    ltorch.ge.id: (0, _INF),
    ltorch.gt.id: (1, _INF),
}


def is_number(value: Any) -> bool:
    """A number known while tracing."""
    return isinstance(value, (int, float)) and not isinstance(value, NumberProxy)


def fill_of(bsym: BoundSymbol) -> tuple[Any, Any, Any] | None:
    """(condition, value where it holds, value elsewhere) of a where or masked_fill."""
    if bsym.sym.id == ltorch.where.id:
        condition, true, false = bsym.args
        return condition, true, false
    if bsym.sym.id == ltorch.masked_fill.id:
        a, mask, value = bsym.args
        return mask, value, a
    return None


class Proof:
    """One attempt at a proof over the symbols that ``producers`` knows."""

    def __init__(self, producers: Producers) -> None:
        self.producers = producers
        self._trail: list[TensorProxy] = []
        self._too_long = False

    def made(self, value: Any) -> BoundSymbol | None:
        """The symbol that made ``value``; the proof then rests on it."""
        bsym = self.producers.of(value)
        if bsym is None:
            return None
        self._too_long = self._too_long or len(self._trail) == _LONGEST
        self._trail.append(value)
        return None if self._too_long else bsym

    def holds(self) -> bool:
        """Whether the proof is complete, and nothing was written in place since the oldest tensor it rests on."""
        return not self._too_long and self.producers.stable(*self._trail)

    # ---- what elements can be ----------------------------------------------------------------------------------------
    def bounds(self, value: Any) -> Interval:
        """An interval that holds every element of ``value``, a number or a tensor."""
        if is_number(value):
            return _ANYTHING if math.isnan(value) else (float(value), float(value))
        if not isinstance(value, TensorProxy):
            return _ANYTHING
        made = self.made(value)
        found = None if made is None else self._bounds_of(made)
        stored = None if found is None else _stored(found, value.dtype)
        return stored or ((0.0, 1.0) if dtypes.is_boolean_dtype(value.dtype) else _ANYTHING)

    def _bounds_of(self, made: BoundSymbol) -> Interval | None:
        args = made.args
        if (fill := fill_of(made)) is not None:
            return _hull(self.bounds(fill[1]), self.bounds(fill[2]))
        match made.sym.id:
            case ltorch.zeros.id | ltorch.zeros_like.id | "Tensor.new_zeros":
                return 0.0, 0.0
            case ltorch.ones.id | ltorch.ones_like.id | "Tensor.new_ones":
                return 1.0, 1.0
            case ltorch.tensor.id if is_number(args[0]):
                return self.bounds(args[0])
            case ltorch.full.id | ltorch.full_like.id:
                return self.bounds(args[1])
            case "Tensor.new_full":
                return self.bounds(args[2])
            case ltorch.tril.id | ltorch.triu.id:
                return _hull(self.bounds(args[0]), (0.0, 0.0))
            case ltorch.add.id | ltorch.sub.id | ltorch.mul.id if made.kwargs.get("alpha", 1) == 1:
                return _arithmetic(made.sym.id, self.bounds(args[0]), self.bounds(args[1]))
            case id if id in CASTS | MOVES:
                return self.bounds(args[0])
        return None

    def magnitude(self, scores: Any) -> float:
        """What no element of ``scores`` exceeds in magnitude, if ordinary scores do not exceed √finfo.max (see the
        assumption above); inf where the trace gives a reason to think that they hold a -inf, or may."""
        if is_number(scores):
            return abs(scores) if scores == scores else _INF
        made = self.made(scores)
        found = _ordinary(scores.dtype) if made is None else self._magnitude_of(made)
        return found if found <= _largest(scores.dtype) else _INF

    def _magnitude_of(self, made: BoundSymbol) -> float:
        args = made.args
        if made.sym.id in _PRODUCTS:
            return _ordinary(made.output.dtype)
        if made.sym.id in _BOUNDED:
            return 1.0
        if (fill := fill_of(made)) is not None:
            constant, other = self._constant_and_other(*fill[1:])
            return max(constant, other)
        match made.sym.id:
            case ltorch.mul.id:
                constant, other = self._constant_and_other(*args[:2])
                return constant * other if constant != 0 or other < _INF else _INF
            case ltorch.add.id | ltorch.sub.id if made.kwargs.get("alpha", 1) == 1:
                return sum(self._constant_and_other(*args[:2]))
            case ltorch.div.id | ltorch.true_divide.id if is_number(args[1]) and args[1] != 0:
                return self.magnitude(args[0]) / abs(args[1])
            case id if id in CASTS | MOVES:
                return self.magnitude(args[0])
        return _INF

    def _constant_and_other(self, a: Any, b: Any) -> tuple[float, float]:
        """The magnitudes of two operands of which one has bounds; (inf, inf) if neither has."""
        for constant, other in ((a, b), (b, a)):
            largest = max(map(abs, self.bounds(constant)))
            if largest < _INF:
                return largest, self.magnitude(other)
        return _INF, _INF

    # ---- where a mask is ---------------------------------------------------------------------------------------------
    def band(self, mask: Any) -> Interval | None:
        """(low, high), if ``mask`` is 1 where low ≤ column − row ≤ high in its last two axes and 0 elsewhere."""
        made = self.made(mask)
        if made is None or mask.ndim < 2:
            return None
        args = made.args
        match made.sym.id:
            case ltorch.tril.id | ltorch.triu.id if type(args[1]) is int and made.kwargs.get("fill_value") is None:
                if self.bounds(args[0]) == (1.0, 1.0):
                    return (-_INF, args[1]) if made.sym.id == ltorch.tril.id else (args[1], _INF)
            case ltorch.logical_not.id:
                return _complement(self.band(args[0]))
            case ltorch.bitwise_not.id if dtypes.is_boolean_dtype(mask.dtype):
                return _complement(self.band(args[0]))
            case id if id in _COMPARISONS and is_number(args[1]):
                inside, outside = (_COMPARISONS[id](element, args[1]) for element in (1, 0))
                if inside != outside:
                    return self.band(args[0]) if inside else _complement(self.band(args[0]))
            case id if id in _COLUMN_MINUS_ROW:
                axes = tuple(self._index_axis(value) for value in args[:2])
                low, high = _COLUMN_MINUS_ROW[id]
                return {(-1, -2): (low, high), (-2, -1): (-high, -low)}.get(axes)  # type: ignore[arg-type]
            case id if id in CASTS or (id in MOVES and _keeps_matrix(made)):
                return self.band(args[0])
        return None

    def _index_axis(self, value: Any) -> int | None:
        """-1 or -2, if ``value`` is arange(n) laid out along that axis, all other axes of size 1."""
        made = self.made(value)
        while made is not None and (made.sym.id in RESHAPES or only_adds_axes(made)):
            made = self.made(made.args[0])
        if made is None or made.sym.id != ltorch.arange.id:
            return None
        start, end, step = made.args
        if not (end is None or (is_number(start) and start == 0)) or not is_number(step) or step != 1:
            return None
        long = [axis - value.ndim for axis, size in enumerate(value._shape) if type(size) is not int or size != 1]
        return long[0] if long in ([-1], [-2]) else None

    def causal(self, masked: Any) -> tuple[Any, Interval] | None:
        """(what stands inside, band), if ``masked`` is -inf exactly outside of a band of its last two axes."""
        made = self.made(masked)
        if made is None:
            return None
        if (fill := fill_of(made)) is not None:
            condition, true, false = fill
            band = self.band(condition)
            if self.bounds(true) == (-_INF, -_INF):
                inside, band = false, _complement(band)
            elif self.bounds(false) == (-_INF, -_INF):
                inside = true
            else:
                return None
            return (inside, band) if band is not None and _same_matrix(condition, masked) else None
        match made.sym.id:
            case ltorch.tril.id | ltorch.triu.id if type(made.args[1]) is int:
                if self.bounds(made.args[0]) == (-_INF, -_INF):
                    diagonal = made.args[1]
                    return 0.0, ((diagonal + 1, _INF) if made.sym.id == ltorch.tril.id else (-_INF, diagonal - 1))
            case id if id in CASTS or (id in MOVES and _keeps_matrix(made)):
                inner = self.causal(made.args[0])
                if inner is not None and id in CASTS and not is_upcast(made):
                    finite = _stored(self.bounds(inner[0]), masked.dtype)
                    return inner if finite is not None and finite[0] > -_INF else None
                return inner
        return None


def _same_matrix(a: TensorProxy, b: TensorProxy) -> bool:
    """Whether the last two axes of both have the same sizes, known ones."""
    sizes = tuple(a._shape[-2:]), tuple(b._shape[-2:])
    return all(type(n) is int for n in sizes[0] + sizes[1]) and len(sizes[0]) == 2 and sizes[0] == sizes[1]


def _from_the_start(index: Any) -> bool:
    return (
        isinstance(index, slice)
        and all(type(bound) in (int, type(None)) for bound in (index.start, index.stop, index.step))
        and index.start in (None, 0)
        and index.step in (None, 1)
    )


def _index_of(made: BoundSymbol) -> tuple[Any, ...]:
    return made.args[1] if isinstance(made.args[1], tuple) else (made.args[1],)


def only_adds_axes(made: BoundSymbol) -> bool:
    return made.sym.id == ltorch.getitem.id and all(
        i is None or i is Ellipsis or (_from_the_start(i) and i.stop is None) for i in _index_of(made)
    )


def _keeps_matrix(made: BoundSymbol) -> bool:
    """Whether a shape operation leaves rows and columns what they were: other axes, or the first rows and columns."""
    if made.sym.id in RESHAPES | EXPANDS:
        return _same_matrix(made.args[0], made.output)
    if made.sym.id != ltorch.getitem.id:
        return False
    index = _index_of(made)
    slices = [i for i in index if i is not None]
    return (
        all(_from_the_start(i) for i in slices)
        and len(slices) == made.args[0].ndim
        and all(i is not None for i in index[-2:])
    )


def why_rows_live(scores: TensorProxy, dim: int, producers: Producers) -> str | None:
    """In words, why no row of ``scores`` along ``dim`` can be dead; None if that cannot be proved."""
    proof = Proof(producers)
    reason = _why(proof, scores, dim % max(scores.ndim, 1) == scores.ndim - 1)
    return f"{reason} (the scores themselves are taken to be above -inf)" if reason and proof.holds() else None


def _why(proof: Proof, scores: TensorProxy, last_axis: bool) -> str | None:
    made = proof.made(scores)
    if made is None:
        return None
    if made.sym.id in CASTS and is_upcast(made):
        return _why(proof, made.args[0], last_axis)
    if (fill := fill_of(made)) is not None:
        for value, other in (fill[1:], fill[:0:-1]):
            low = (_stored(proof.bounds(value), scores.dtype) or _ANYTHING)[0]
            if low > -_INF and proof.magnitude(other) < _INF:
                return f"the mask fills in {low:g}, which is finite"
    elif made.sym.id == ltorch.add.id and made.kwargs.get("alpha", 1) == 1:
        for mask, other in (made.args[:2], made.args[1::-1]):
            reason = _why_added(proof, mask, scores, last_axis, other)
            if reason is not None:
                return reason
    causal = proof.causal(scores)
    if causal is not None and last_axis and proof.magnitude(causal[0]) < _INF:
        return _band_reaches_every_row(causal[1], scores)
    return None


def _why_added(proof: Proof, mask: Any, sum: TensorProxy, last_axis: bool, scores: Any = None) -> str | None:
    """Why ``mask`` makes no row of ``sum`` dead, which is itself plus ``scores`` (None: a product)."""
    low, band = proof.bounds(mask)[0], None
    if low == -_INF:
        causal = proof.causal(mask) if last_axis and _same_matrix(mask, sum) else None
        if causal is None:
            return None
        low, band = proof.bounds(causal[0])[0], causal[1]
    if low == -_INF:
        return None
    score = _ordinary(sum.dtype) if scores is None else proof.magnitude(scores)
    if not _is_finite(low - score, sum.dtype):
        return None
    if band is not None:
        return _band_reaches_every_row(band, sum)
    return f"the mask adds no less than {low:g}, which is finite"


def why_attention_lives(mask: TensorProxy, query: TensorProxy, key: TensorProxy, producers: Producers) -> str | None:
    """In words, why an attention mask (boolean: True keeps; else added to the scores) leaves every query a key."""
    proof = Proof(producers)
    if tuple(map(type, (*mask._shape[-2:], query._shape[-2], key._shape[-2]))) != (int,) * 4:
        return None
    if tuple(mask._shape[-2:]) != (query._shape[-2], key._shape[-2]):
        return None
    if dtypes.is_boolean_dtype(mask.dtype):
        band = proof.band(mask)
        reason = None if band is None else _band_reaches_every_row(band, mask)
    else:
        reason = _why_added(proof, mask, mask, last_axis=True)
    return reason if proof.holds() else None


def _band_reaches_every_row(band: Interval, scores: TensorProxy) -> str | None:
    rows, columns = scores._shape[-2:]
    if type(rows) is not int or type(columns) is not int or columns < 1:
        return None
    low, high = band
    # Row i keeps the columns from max(0, i + low) to min(columns - 1, i + high).
    if low <= high and high >= 0 and rows - 1 + low <= columns - 1:
        kept = "its diagonal" if low <= 0 <= high and rows <= columns else "a column"
        return f"the causal mask leaves every one of the {rows} rows {kept}"
    return None


def is_upcast(made: BoundSymbol) -> bool:
    """Whether a cast goes to a wider floating dtype, where an element is -inf exactly if it was before."""
    source, result = (to_torch_dtype(t.dtype) for t in (made.args[0], made.output))
    return source.is_floating_point and result.is_floating_point and torch.promote_types(source, result) == result


def _largest(dtype: dtypes.dtype) -> float:
    """The largest finite element of ``dtype``."""
    torch_dtype = to_torch_dtype(dtype)
    if torch_dtype == torch.bool:
        return 1.0
    return float((torch.finfo if torch_dtype.is_floating_point else torch.iinfo)(torch_dtype).max)


def _ordinary(dtype: dtypes.dtype) -> float:
    """What the magnitude of a score is taken not to exceed."""
    return math.sqrt(_largest(dtype))


def _is_finite(value: float, dtype: dtypes.dtype) -> bool:
    torch_dtype = to_torch_dtype(dtype)
    return torch_dtype.is_floating_point and bool(torch.tensor(value, dtype=torch.float64).to(torch_dtype).isfinite())


def _stored(interval: Interval, dtype: dtypes.dtype) -> Interval | None:
    """``interval`` after its elements have been stored in ``dtype``; None where that is not worth working out."""
    low, high = interval
    if dtypes.is_boolean_dtype(dtype):
        return (float(bool(low)), float(bool(high))) if low == high else (0.0, 1.0)
    if dtypes.is_float_dtype(dtype):
        low, high = torch.tensor(interval, dtype=torch.float64).to(to_torch_dtype(dtype)).tolist()
        return low, high
    # Integers from 0 to 127 are the same in every integer dtype.
    return interval if 0 <= low <= high <= 127 and low == int(low) and high == int(high) else None


def _hull(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _complement(band: Interval | None) -> Interval | None:
    """The integers outside of a half-line."""
    if band is None or (band[0] == -_INF) == (band[1] == _INF):
        return None
    return (band[1] + 1, _INF) if band[0] == -_INF else (-_INF, band[0] - 1)


def _arithmetic(id: Any, a: Interval, b: Interval) -> Interval | None:
    if not all(map(math.isfinite, (*a, *b))):
        return None  # inf - inf and 0 * inf are NaN
    if id == ltorch.mul.id:
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    return (a[0] + b[0], a[1] + b[1]) if id == ltorch.add.id else (a[0] - b[1], a[1] - b[0])
