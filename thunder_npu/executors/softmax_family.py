"""The softmax family as both executors claim it: metas, gradient rules, checkers and PyTorch's spellings.

An executor module brings the implementations (functions of torch tensors) and calls :func:`register`. What decides a
claim is :mod:`thunder_npu.routing`; this module only asks it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder import clang
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes, prims, utils
from thunder.core.compile_data import get_compile_data
from thunder.core.jit_ext import get_jit_ctx, record_source_loc_in_symbol_header
from thunder.core.prims import OpTags
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.transforms import get_grad, put_grad, register_grad
from thunder.extend import Executor

from thunder_npu import mends, options, routing
from thunder_npu.transforms import softmax as safe
from thunder_npu.transforms import tracing

Forward = Callable[[torch.Tensor, int, torch.dtype | None], torch.Tensor]
Backward = Callable[[torch.Tensor, torch.Tensor, int, torch.dtype], torch.Tensor]

SYMBOLS: dict[str, Symbol] = {
    "softmax": ltorch._softmax,
    "log_softmax": ltorch.log_softmax,
    "safe_softmax": safe.safe_softmax,
}


class Implementation(NamedTuple):
    """How an executor computes one operation.

    ``forward(a, dim, dtype)`` casts ``a`` to ``dtype`` (unless None) before it computes; ``backward(grad, out, dim,
    input_dtype)`` needs only the output and gives the gradient in the dtype of the forward's input.
    """

    forward: Forward
    backward: Backward


# ---- metas -----------------------------------------------------------------------------------------------------------
def _forward_meta(a: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    utils.canonicalize_dim(a.ndim, dim)
    return TensorProxy(like=a, dtype=a.dtype if dtype is None else dtypes.to_dtype(dtype))


def _backward_meta(grad: TensorProxy, out: TensorProxy, dim: int, input_dtype: Any) -> TensorProxy:
    utils.check_same_shape(grad, out)
    return TensorProxy(like=out, dtype=dtypes.to_dtype(input_dtype))


# ---- checker ---------------------------------------------------------------------------------------------------------
def routing_options(compile_options: dict[str, Any] | None = None) -> routing.Options:
    """The options that routing reads, of the compilation under way or of a finished one with these compile options."""
    read = options.get if compile_options is None else partial(options.resolve, compile_options=compile_options)
    return routing.Options(*(read(field.name) for field in dataclasses.fields(routing.Options)))


def describe(
    op: str, a: TensorProxy, dim: Any, dtype: Any = None, executors: Sequence[Executor] | None = None
) -> routing.Softmax | None:
    """``op`` over axis ``dim`` of the proxy ``a`` as routing sees it; None if it is not a softmax of a plain tensor.

    ``executors`` is the list of the compilation; None, outside of one: both of ours.
    """
    if type(a) is not TensorProxy or type(dim) is not int or not -max(a.ndim, 1) <= dim < max(a.ndim, 1):
        return None
    width = a._shape[dim] if a.ndim else 1
    dtype_in = dtypes.to_torch_dtype(a.dtype)
    return routing.Softmax(
        op=op,
        rank=a.ndim,
        # A symbolic length is a NumberProxy with the value that it had in the traced call, if Thunder knows that. (Not
        # a.shape: Thunder records a read of it in the trace when sizes are symbolic.)
        width=width.value if isinstance(width, NumberProxy) else width,
        empty=any(type(n) is int and n == 0 for n in a._shape),
        dtype=dtype_in,
        result_dtype=dtype_in if dtype is None else dtypes.to_torch_dtype(dtype),
        device=a.device.type,
        executors=routing.OURS if executors is None else tuple(str(ex.name) for ex in executors),
        symbolic=isinstance(width, NumberProxy),
    )


# Thunder 0.2.6 takes its own comparison out of a prologue as dead code: its result is nothing.
COMPARE: Symbol = dataclasses.replace(prims.assert_compare, tags=[OpTags.DONT_DCE], _module=prims, _hash=None)


def _keep_to_the_side(op: str, a: TensorProxy, dim: int, dtype: Any) -> None:
    """Lets the prologue check that a symbolic width stays on its side of the bound; else Thunder traces the call anew.

    A width that Thunder computes from others (of a cat, of view(-1)) cannot be asked for in a prologue: it keeps the
    route of the traced call, which is right at every width.
    """
    softmax = describe(op, a, dim, dtype, get_compile_data().executors_list)
    if softmax is None or not softmax.symbolic or a._shape[dim].history is None:
        return
    order = [name for name in softmax.executors if name in routing.OURS]
    for comparison, bound in routing.side(softmax, routing_options(), order):
        get_jit_ctx().add_constraint((COMPARE, a._shape[dim], comparison, bound))


def _keeping(lookaside: Callable[..., Any], op: str, axis: Callable[..., tuple[Any, Any, Any]]) -> Callable[..., Any]:
    """A lookaside of another module that keeps to the side too; ``axis`` tells tensor, dim and dtype of its call."""

    @functools.wraps(lookaside)
    def call(*args: Any, **kwargs: Any) -> Any:
        _keep_to_the_side(op, *axis(*args, **kwargs))
        return lookaside(*args, **kwargs)

    return call


def _takes(executor: str, op: str, a: TensorProxy, /, dim: Any, dtype: Any = None) -> bool:
    data = get_compile_data()
    softmax = describe(op, a, dim, dtype, None if data is None else data.executors_list)
    return softmax is not None and routing.claim(executor, softmax, routing_options()).taken


# ---- registration ----------------------------------------------------------------------------------------------------
# Thunder's rematerialisation recomputes in the backward whatever is not tagged as costly.
_TAGS = [OpTags.REDUCTION_OP]


def register(executor: Executor, implementations: dict[str, Implementation]) -> None:
    """Give ``executor`` its operators ``<name>_<op>`` and ``…_backward``, and let it claim Thunder's symbols."""
    for op, implementation in implementations.items():
        name = f"{executor.name}_{op}"
        forward = executor.register_operator(name, meta=_forward_meta, fn=implementation.forward, tags=_TAGS)
        backward = executor.register_operator(
            f"{name}_backward", meta=_backward_meta, fn=implementation.backward, tags=_TAGS
        )
        executor.register_implementation(
            SYMBOLS[op],
            checker=partial(_takes, str(executor.name), op),
            execution_transform=_execution(forward),
            grad_transform=_gradient(SYMBOLS[op], forward, backward),
        )
        _register_second_gradient(op, forward, backward)
    _register_log_softmax_backward(executor, executor.opmap[f"{executor.name}_log_softmax_backward"])
    executor._lookasides.update({f: record_source_loc_in_symbol_header(call) for f, call in _SPELLINGS.items()})
    tracing.register(executor)
    for op, spellings, axis in _ELSEWHERE:
        executor._lookasides.update({f: _keeping(executor._lookasides[f], op, axis) for f in spellings})
    mends.register(executor)


def _execution(forward: Symbol) -> Callable[..., TensorProxy]:
    def execute(a: TensorProxy, /, dim: int, dtype: Any = None) -> TensorProxy:
        return forward(a, dim) if dtype is None else forward(a, dim, dtypes.to_torch_dtype(dtype))

    return execute


def _gradient(symbol: Symbol, forward: Symbol, backward: Symbol) -> Callable[..., TensorProxy]:
    execute = _execution(forward)

    def grad_rule(a: TensorProxy, /, dim: int, dtype: Any = None) -> TensorProxy:
        out = execute(a, dim, dtype)
        put_grad(a, backward(get_grad(out), out, dim, dtypes.to_torch_dtype(a.dtype)))
        return out

    # Thunder's VJP pairs the arguments of the rule with those of the symbol: dtype is keyword-only in some of them.
    grad_rule.__signature__ = inspect.signature(symbol.meta)  # type: ignore[attr-defined]
    return grad_rule


def _register_second_gradient(op: str, forward: Symbol, backward: Symbol) -> None:
    """Gradients of our own operators, for Thunder's function transforms applied twice (``grad(grad(f))``).

    With s = Σ over the axis, g the gradient of the backward's result and y the forward's output:

        softmax       dx = y·(dy − s(y·dy))     d(dy) = y·(g − s(g·y))     dy_out = g·(dy − s(y·dy)) − dy·s(g·y)
        log_softmax   dx = dy − e^y·s(dy)       d(dy) = g − s(g·e^y)       dy_out = −g·e^y·s(dy)
    """
    register_grad(forward, _gradient(forward, forward, backward))

    def rule(grad: TensorProxy, out: TensorProxy, dim: int, input_dtype: Any) -> TensorProxy:
        result = backward(grad, out, dim, dtypes.to_torch_dtype(input_dtype))
        compute = utils.get_computation_dtype(out.dtype)
        g, dy, y = (maybe_convert_to_dtype(t, compute) for t in (get_grad(result), grad, out))
        if op == "log_softmax":
            p = ltorch.exp(y)
            of_grad = g - ltorch.sum(g * p, dim, keepdim=True)
            of_out = -g * p * ltorch.sum(dy, dim, keepdim=True)
        else:
            weight = ltorch.sum(g * y, dim, keepdim=True)
            of_grad = y * (g - weight)
            of_out = g * (dy - ltorch.sum(y * dy, dim, keepdim=True)) - dy * weight
        put_grad(grad, maybe_convert_to_dtype(of_grad, grad.dtype))
        put_grad(out, maybe_convert_to_dtype(of_out, out.dtype))
        return result

    register_grad(backward, rule)


def _register_log_softmax_backward(executor: Executor, backward: Symbol) -> None:
    """Claim Thunder's own log_softmax_backward too: the gradient of a log_softmax that was differentiated elsewhere."""

    def takes(g: TensorProxy, /, output: TensorProxy, dim: int, dtype: Any) -> bool:
        return _takes(str(executor.name), "log_softmax", output, dim)

    def execute(g: TensorProxy, /, output: TensorProxy, dim: int, dtype: Any) -> TensorProxy:
        return backward(g, output, dim, dtypes.to_torch_dtype(dtype))

    executor.register_implementation(ltorch.log_softmax_backward, checker=takes, execution_transform=execute)


# ---- spellings -------------------------------------------------------------------------------------------------------
# Thunder 0.2.6 lacks or mistakes some of PyTorch's: input= by name, F.softmax without dim, _stacklevel of
# nn.LogSoftmax and nn.Softmin, dtype by position, torch.special.softmax, an axis of length zero. The executors own
# lookasides that bring every spelling to Thunder's symbol.
def _emit(op: str, a: TensorProxy, dim: int, dtype: Any) -> TensorProxy:
    if isinstance(dim, NumberProxy) and dim.value is not None and dim.history is not None:
        # With symbolic values an argument or attribute is symbolic too; a kernel is of one axis.
        get_jit_ctx().add_constraint((clang.check_number_type_and_value, dim, dim.value))
        dim = dim.value
    if a.ndim == 0:
        utils.canonicalize_dim(1, dim)
    if any(type(n) is int and n == 0 for n in a._shape):
        # Nothing to reduce: an empty result of the right dtype, with storage of its own and a gradient.
        utils.canonicalize_dim(a.ndim, dim)
        return ltorch.clone(a if dtype is None else ltorch.to(a, dtype))
    _keep_to_the_side(op, a, dim, dtype)
    return SYMBOLS[op](a, dim, dtype=dtype)


def _torch_spelling(op: str, input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """torch.softmax, torch.special.softmax and Tensor.softmax: (input, dim, dtype)."""
    return _emit(op, input, dim, dtype)


def _functional_spelling(
    op: str, input: TensorProxy, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> TensorProxy:
    """torch.nn.functional.softmax: (input, dim, _stacklevel, dtype); without dim the axis that PyTorch infers."""
    return _emit(op, input, _implicit_dim(op, input) if dim is None else dim, dtype)


def _softmin(input: TensorProxy, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> TensorProxy:
    return _emit("softmax", ltorch.neg(input), _implicit_dim("softmin", input) if dim is None else dim, dtype)


def _implicit_dim(op: str, input: TensorProxy) -> int:
    """The axis that torch.nn.functional takes without dim, with the warning that it gives."""
    warnings.warn(f"Implicit dimension choice for {op} is deprecated: pass dim=", stacklevel=2)
    return 0 if input.ndim in (0, 1, 3) else 1


def _spellings(op: str, functions: Sequence[Callable], functional: Callable) -> dict[Callable, Callable]:
    return {**dict.fromkeys(functions, partial(_torch_spelling, op)), functional: partial(_functional_spelling, op)}


# Tensor methods reach the interpreter as Thunder's symbols, so these stand in the table beside PyTorch's functions.
_SPELLINGS: dict[Callable, Callable] = {
    **_spellings("softmax", (torch.softmax, torch.special.softmax, torch.Tensor.softmax, ltorch._softmax), F.softmax),
    **_spellings(
        "log_softmax",
        (torch.log_softmax, torch.special.log_softmax, torch.Tensor.log_softmax, ltorch.log_softmax),
        F.log_softmax,
    ),
    F.softmin: _softmin,
}
# The same for a softmax that comes from a lookaside of the rewrites: attention's is as wide as there are keys.
_ELSEWHERE: tuple[tuple[str, tuple[Callable, ...], Callable[..., tuple[Any, Any, Any]]], ...] = (
    ("safe_softmax", (*safe.SPELLINGS, safe.safe_softmax), lambda input, dim, dtype=None: (input, dim, dtype)),
    ("softmax", (F.scaled_dot_product_attention,), lambda query, key, *_, **__: (key, -2, None)),
)
