"""Gradients of elementwise functions and reductions, where those of Thunder 0.2.6 differ from eager PyTorch's.

Three kinds of fault:

* the gradient is derived from a composition (the sigmoid's from 1/(1 + e^-x)), whose pieces are 0, inf or NaN where the
  whole is not, or which rounds a half type after each piece;
* another subgradient: at a tie, at the bound of a clamp, at a NaN;
* there is none, and tracing stops ("Failed to find a gradient transform").

The rules below are those of ATen (derivatives.yaml, FunctionsManual.cpp, BinaryOps.cpp, Activation.cpp), special
values included. An executor owns them (:class:`~thunder_npu.executors.gradient_rules.GradientRules`), so they act only
where it stands in the list, and no symbol is claimed by them: the forward stays the symbol that it was.

Half types: ATen's backward kernels compute in float32 and round once, and so do these rules.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from numbers import Number
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims, utils
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import get_tracectx
from thunder.core.transforms import _grad_fn_map, get_grad, put_grad
from thunder.extend import Executor

from thunder_npu.mends.mend import Mend

Rule = Callable[..., Any]
Accepts = Callable[[BoundSymbol], bool]

_HALF = (dtypes.bfloat16, dtypes.float16)


def _wide(a: TensorProxy) -> TensorProxy:
    return ltorch.to(a, dtypes.float32) if a.dtype in _HALF else a


# ---- elementwise: one derivative ------------------------------------------------------------------------------------
# Each is (grad, x, y, the other arguments) -> gradient, in float32 for half types; y is the output.
def _sigmoid(g: Any, x: Any, y: Any) -> Any:
    return g * (1 - y) * y


def _tanh(g: Any, x: Any, y: Any) -> Any:
    return g * (1 - y * y)


def _gelu(g: Any, x: Any, y: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        cdf = 0.5 * (1 + ltorch.erf(x * math.sqrt(0.5)))
        return g * (cdf + x * ltorch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))
    beta, kappa = math.sqrt(2 / math.pi), 0.044715
    t = ltorch.tanh(beta * (x + kappa * (x * x * x)))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (beta * (1 + 3 * kappa * (x * x))))


def _relu(g: Any, x: Any, y: Any, inplace: bool = False) -> Any:
    return ltorch.where(y <= 0, 0, g)  # the gradient passes at NaN


def _elu(g: Any, x: Any, y: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return ltorch.where(x <= 0, g * alpha * ltorch.exp(x), g)


def _celu(g: Any, x: Any, y: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return ltorch.where(x <= 0, g * ltorch.exp(x / alpha), g)


# Klambauer et al., Self-Normalizing Neural Networks (2017), as ATen rounds them.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _selu(g: Any, x: Any, y: Any, inplace: bool = False) -> Any:
    return ltorch.where(x <= 0, g * (_SELU_ALPHA * _SELU_SCALE) * ltorch.exp(x), g * _SELU_SCALE)


def _hardsigmoid(g: Any, x: Any, y: Any, inplace: bool = False) -> Any:
    return ltorch.where(ltorch.logical_and(x > -3, x < 3), g / 6, 0)


def _hardswish(g: Any, x: Any, y: Any, inplace: bool = False) -> Any:
    return ltorch.where(x <= -3, 0, ltorch.where(x < 3, g * (x / 3 + 0.5), g))


def _softshrink(g: Any, x: Any, y: Any, lambd: float = 0.5) -> Any:
    return ltorch.where(ltorch.logical_and(x >= -lambd, x <= lambd), 0, g)


def _mish(g: Any, x: Any, y: Any, inplace: bool = False) -> Any:
    t = ltorch.tanh(ltorch.softplus(x))
    return g * (t + x * ltorch.sigmoid(x) * (1 - t * t))


def _hardtanh(g: Any, x: Any, y: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return ltorch.where(ltorch.logical_or(x <= min_val, x >= max_val), 0, g)


def _relu6(g: Any, x: Any, y: Any, inplace: bool = False) -> Any:
    return _hardtanh(g, x, y, 0.0, 6.0)


def _flip(g: Any, x: Any, y: Any, dims: Any = None) -> Any:
    return prims.flip(g, dims)


def _zero(g: Any, x: Any, y: Any) -> Any:
    return ltorch.zeros_like(g)


def _unary(symbol: Symbol, derivative: Callable[..., Any]) -> Rule:
    def rule(a: TensorProxy, *args: Any, **kwargs: Any) -> TensorProxy:
        out = symbol(a, *args, **kwargs)
        g = derivative(_wide(get_grad(out)), _wide(a), _wide(out), *args, **kwargs)
        put_grad(a, ltorch.to(g, a.dtype))
        return out

    return rule


# ---- elementwise: two operands --------------------------------------------------------------------------------------
def _is_tensor(a: Any) -> bool:
    return isinstance(a, TensorProxy)


def _differentiable(a: Any) -> bool:
    return _is_tensor(a) and dtypes.is_inexact_dtype(a.dtype)


def _log_of(base: Any) -> Any:
    if _is_tensor(base):
        return ltorch.log(base)
    return math.log(base) if base > 0 else -math.inf if base == 0 else math.nan


def _pow(x: Any, y: Any) -> Any:
    """x^y. dx is zero, whatever x, where y is zero; dy is zero where x is zero and y is not negative."""
    out = prims.pow(x, y)
    g = get_grad(out)
    if _differentiable(x):
        if _is_tensor(y):
            dx = ltorch.where(y == 0, 0, g * (y * ltorch.pow(x, y - 1)))
        else:
            dx = ltorch.zeros_like(g) if y == 0 else g * (y * ltorch.pow(x, y - 1))
        put_grad(x, dx)
    if _differentiable(y):
        dy = g * (out * _log_of(x))
        if _is_tensor(x):
            dy = ltorch.where(ltorch.logical_and(x == 0, y >= 0), 0, dy)
        elif x == 0:
            dy = ltorch.where(y >= 0, 0, dy)
        put_grad(y, dy)
    return out


def _minimum(a: TensorProxy, b: TensorProxy) -> Any:
    """At a tie each operand has half of the gradient, at a NaN each has all of it."""
    out = prims.minimum(a, b)
    g = get_grad(out)
    shared = ltorch.where(a == b, g / 2, g)
    put_grad(a, ltorch.where(a > b, 0, shared))
    put_grad(b, ltorch.where(b > a, 0, shared))
    return out


def _clamp(a: TensorProxy, min: Any = None, max: Any = None) -> Any:
    """The gradient passes at the bounds, and not at a NaN; the bound is rounded to the dtype, as eager does."""
    out = ltorch.clamp(a, min, max)
    if min is None or max is None:
        inside = a <= max if min is None else a >= min
    else:
        inside = ltorch.logical_and(a >= min, a <= max)
    put_grad(a, ltorch.where(inside, get_grad(out), 0))
    return out


def _remainder(a: Any, b: Any) -> Any:
    out = prims.remainder(a, b)
    g = get_grad(out)
    if _differentiable(a):
        put_grad(a, g)
    if _differentiable(b):
        put_grad(b, -g * ltorch.floor(a / b))
    return out


def _lerp(start: TensorProxy, end: TensorProxy, weight: Any) -> Any:
    out = ltorch.lerp(start, end, weight)
    g = get_grad(out)
    put_grad(start, g * (1 - weight))
    put_grad(end, g * weight)
    if _differentiable(weight):
        put_grad(weight, g * (end - start))
    return out


def _index_add(a: TensorProxy, index: TensorProxy, value: TensorProxy, dim: int) -> Any:
    out = prims.index_add(a, index, value, dim)
    g = get_grad(out)
    put_grad(a, g)
    put_grad(value, prims.take(g, index, dim))
    return out


def _with_scalars(rule: Rule) -> Rule:
    """``rule``, with the gradient of a 0-d operand summed over the elements that it met.

    Thunder does not broadcast a 0-d tensor of the CPU; its rules give such an operand the gradient of the result.
    """

    @wraps(rule)
    def call(*args: Any) -> Any:
        trace = get_tracectx()
        trace.push_scope([])
        out = rule(*args)
        for bsym in trace.pop_scope():
            if bsym.sym is prims.put_grad and bsym.args[0].ndim == 0 and bsym.args[1].ndim > 0:
                put_grad(bsym.args[0], ltorch.sum(bsym.args[1]))
            else:
                trace.peek_scope().append(bsym)
        return out

    return call


# ---- reductions -----------------------------------------------------------------------------------------------------
def _restored(reduced: TensorProxy, a: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """``reduced`` over ``dims`` of ``a``, with these axes back as size 1."""
    return ltorch.reshape(reduced, tuple(1 if d in dims else n for d, n in enumerate(a.shape)))


def _shared(a: TensorProxy, g: TensorProxy, chosen: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """``g`` shared evenly among the elements that were ``chosen``.

    The count is a float: Thunder's own rule sums booleans, and takes the count for one.
    """
    ones = ltorch.to(chosen, _wide(g).dtype)
    count = ltorch.sum(ones, tuple(dims), keepdim=True)
    return ltorch.to(_wide(g) * ones / count, a.dtype)


def _extremum(prim: Symbol) -> Rule:
    """amax and amin: the gradient is shared among all elements that have the value."""

    def rule(a: TensorProxy, dims: Sequence[int]) -> TensorProxy:
        out = prim(a, dims)
        if a.ndim == 0:
            put_grad(a, get_grad(out))
            return out
        g, value = _restored(get_grad(out), a, dims), _restored(out, a, dims)
        put_grad(a, _shared(a, g, a == value, dims))
        return out

    return rule


def _max(a: TensorProxy, dim: Any = None, keepdim: bool = False) -> Any:
    """max(): shared among all maxima, among all NaN where there is one. max(dim): to the element of the index."""
    if dim is None:
        axes = tuple(range(a.ndim))
        out = ltorch.amax(a, axes)
        g, value = (ltorch.reshape(t, (1,) * a.ndim) for t in (get_grad(out), out))
        chosen = ltorch.logical_or(a == value, ltorch.logical_and(a != a, value != value))
        put_grad(a, _shared(a, g, chosen, axes) if a.ndim else get_grad(out))
        return out
    values, indices = ltorch.amax(a, dim, keepdim), ltorch.argmax(a, dim, keepdim)
    if a.ndim == 0:
        put_grad(a, get_grad(values))
        return values, indices
    axis = utils.canonicalize_dim(a.ndim, dim)
    g, index = (_restored(t, a, (axis,)) for t in (get_grad(values), indices))
    position = ltorch.arange(a.shape[axis], device=a.device)
    position = ltorch.reshape(position, tuple(a.shape[axis] if d == axis else 1 for d in range(a.ndim)))
    put_grad(a, ltorch.where(position == index, g, 0))
    return values, indices


def _prod(a: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """The product of the other elements: with one zero only this one has a gradient, with two none has."""
    out = prims.prod(a, dims)
    if a.ndim == 0:
        put_grad(a, get_grad(out))
        return out
    dims = tuple(dims)
    x, zero = _wide(a), a == 0
    zeros = ltorch.sum(ltorch.to(zero, x.dtype), dims, keepdim=True)
    product = _restored(prims.prod(ltorch.where(zero, 1, x), dims), a, dims)
    others = ltorch.where(zero, ltorch.where(zeros == 1, product, 0), ltorch.where(zeros == 0, product / x, 0))
    put_grad(a, ltorch.to(_wide(_restored(get_grad(out), a, dims)) * others, a.dtype))
    return out


# ---- losses ---------------------------------------------------------------------------------------------------------
def _nll_loss(
    a: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    """ATen's operator forward and backward.

    Thunder's rule decomposes the forward, gives the backward a float64 weight where the reduction is not "mean", and
    for inputs of 3 or of more than 4 axes a gradient of another shape.
    """
    ignore_index = -1 if ignore_index is None else ignore_index
    out = ltorch.nll_loss(a, target, weight, ignore_index, reduction)
    g = get_grad(out)
    total = ltorch.full((), 0.0, device=a.device, dtype=a.dtype)
    if reduction == "mean":
        valid = target != ignore_index
        if weight is None:
            total = ltorch.sum(ltorch.to(valid, dtypes.float32))
        else:
            chosen = prims.take(weight, ltorch.reshape(ltorch.where(valid, target, 0), (target.numel(),)), 0)
            total = ltorch.sum(ltorch.where(ltorch.reshape(valid, (target.numel(),)), _wide(chosen), 0))
    x, index = a, target
    if a.ndim == 3 or a.ndim > 4:
        rest = math.prod(a.shape[2:])
        x, index = ltorch.reshape(a, (*a.shape[:2], 1, rest)), ltorch.reshape(target, (a.shape[0], 1, rest))
        g = ltorch.reshape(g, index.shape) if reduction == "none" else g
    dx = ltorch.nll_loss_backward(g, x, index, weight, reduction, ignore_index, total)
    put_grad(a, ltorch.reshape(dx, a.shape))
    return out


# ---- the table ------------------------------------------------------------------------------------------------------
def _always(bsym: BoundSymbol) -> bool:
    return True


def _real(bsym: BoundSymbol) -> bool:
    """No complex operand: the rules of real functions conjugate nothing."""
    return not any(isinstance(p, TensorProxy) and dtypes.is_complex_dtype(p.dtype) for p in bsym.flat_proxy_args)


def _out_of_place(bsym: BoundSymbol) -> bool:
    return _real(bsym) and not any(a is True for a in (*bsym.args[1:], bsym.kwargs.get("inplace")))


def _plain_numbers(bsym: BoundSymbol) -> bool:
    return _real(bsym) and not any(isinstance(a, NumberProxy) for a in bsym.args)


def _bounds_are_numbers(bsym: BoundSymbol) -> bool:
    bounds = (*bsym.args[1:], *bsym.kwargs.values())
    return _real(bsym) and all(b is None or isinstance(b, Number) for b in bounds)


def _alike(bsym: BoundSymbol) -> bool:
    """Tensors of one shape and dtype: nothing is broadcast or promoted."""
    tensors = [a for a in bsym.flat_proxy_args if isinstance(a, TensorProxy)]
    return _real(bsym) and len({(tuple(t.shape), t.dtype) for t in tensors}) == 1


def _has_elements(bsym: BoundSymbol) -> bool:
    return all(type(n) is int and n > 0 for n in (*bsym.args[0]._shape, *bsym.args[1]._shape))


def _no_tensor_dim(bsym: BoundSymbol) -> bool:
    dim = bsym.kwargs.get("dim", bsym.args[1] if len(bsym.args) > 1 else None)
    return _real(bsym) and (dim is None or type(dim) is int)


_UNARY: tuple[tuple[Symbol, Callable[..., Any], Accepts], ...] = (
    (ltorch.sigmoid, _sigmoid, _real),
    (ltorch.tanh, _tanh, _real),
    (prims.tanh, _tanh, _real),
    (ltorch.gelu, _gelu, _real),
    (ltorch.relu, _relu, _out_of_place),
    (ltorch.elu, _elu, _out_of_place),
    (ltorch.celu, _celu, _out_of_place),
    (ltorch.selu, _selu, _out_of_place),
    (ltorch.hardtanh, _hardtanh, _out_of_place),
    (ltorch.relu6, _relu6, _out_of_place),
    (ltorch.hardsigmoid, _hardsigmoid, _out_of_place),
    (ltorch.hardswish, _hardswish, _out_of_place),
    (ltorch.mish, _mish, _out_of_place),
    (ltorch.softshrink, _softshrink, _real),
    (prims.flip, _flip, _always),
    (prims.round, _zero, _real),
    (prims.trunc, _zero, _real),
)
_OTHERS: tuple[tuple[Symbol, Rule, Accepts], ...] = (
    (ltorch.clamp, _clamp, _bounds_are_numbers),
    (prims.pow, _with_scalars(_pow), _plain_numbers),
    (prims.minimum, _with_scalars(_minimum), _real),
    (prims.remainder, _with_scalars(_remainder), _real),
    (ltorch.lerp, _lerp, _alike),
    (prims.index_add, _index_add, _always),
    (prims.amax, _extremum(prims.amax), _real),
    (prims.amin, _extremum(prims.amin), _real),
    (prims.prod, _prod, _real),
    (ltorch.torch_max, _max, _no_tensor_dim),
    (ltorch.nll_loss, _nll_loss, _has_elements),
    (prims.isfinite, prims.isfinite, _always),
    (prims.argmin, prims.argmin, _always),
)
# Thunder's own rules, but for the sum over what a 0-d operand met.
_SCALARS: tuple[Symbol, ...] = (
    prims.add,
    prims.sub,
    prims.mul,
    prims.div,
    prims.where,
    prims.maximum,
    prims.fmod,
)


def rules() -> dict[Hashable, tuple[Accepts, Rule]]:
    """By id of a symbol: which bound symbols the rule takes, and the rule."""
    found = [(symbol, _unary(symbol, derivative), accepts) for symbol, derivative, accepts in _UNARY]
    found += _OTHERS
    found += [(s, _with_scalars(_grad_fn_map[s.id]), _always) for s in _SCALARS if s.id in _grad_fn_map]
    for symbol, rule, _ in found:
        if not isinstance(rule, Symbol):
            # Thunder's VJP pairs the arguments of a rule with those of its symbol.
            rule.__signature__ = inspect.signature(symbol.meta)  # type: ignore[attr-defined]
    return {symbol.id: (accepts, rule) for symbol, rule, accepts in found}


def _apply(executor: Executor | None) -> None:
    executor.gradient_rules.update(rules())  # type: ignore[union-attr]


GRADIENTS = Mend(
    "gradients of sigmoid, pow, clamp, amax, … are NaN or wrong at special values; flip, minimum, lerp have none",
    _apply,
)
