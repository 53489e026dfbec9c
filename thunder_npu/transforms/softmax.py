"""safe_softmax: the symbol, its gradient, and how it runs when no executor of this package claims it.

``torch._safe_softmax`` is softmax, except that a row holding nothing but -inf (a fully masked row) gives zeros instead
of NaN, and its gradient is zero. Thunder does not know it; here it becomes one Thunder symbol. Executors claim it with
``register_implementation(safe_softmax, …)`` like any other. Unclaimed, it runs as ATen's own ``torch._safe_softmax``.

What this module never does: choose a route (``routing.py``), or look for a dead row among the softmax's NaNs.
"""

from __future__ import annotations

import math
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes, utils
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.jit_ext import (
    _general_jit_lookaside_map,
    ensure_recursive_proxies,
    interpreter_needs_wrap,
    record_source_loc_in_symbol_header,
)
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grad, register_grad
from thunder.executors import torchex

_SPELLINGS = (torch._safe_softmax, torch.ops.aten._safe_softmax, torch.ops.aten._safe_softmax.default)


@ltorch.torchsymbol(*_SPELLINGS, id="torch._safe_softmax")
def safe_softmax(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """Softmax of ``input`` along ``dim``, zeros in rows that hold only -inf. Shape of ``input``, dtype ``dtype or
    input.dtype``; ``dtype`` is applied before anything is computed. A row with a NaN, or with +inf, is NaN throughout.

    Raises:
        IndexError: ``dim`` is out of range.
        NotImplementedError: the result dtype is not a floating one (as in eager).
    """
    result_dtype = to_dtype(dtype if dtype is not None else input.dtype)
    utils.check(
        dtypes.is_float_dtype(result_dtype),
        lambda: f"_safe_softmax of {input.dtype} needs dtype= with a floating dtype, got {dtype}",
        exception_type=NotImplementedError,
    )
    dim = utils.canonicalize_dim(input.ndim, dim)
    scores = maybe_convert_to_dtype(input, result_dtype)
    if any(isinstance(n, int) and n == 0 for n in input.shape):
        return ltorch.zeros_like(scores)
    dead = ltorch.all_tensor(scores == -math.inf, dim, keepdim=True)
    return ltorch.where(dead, 0.0, ltorch._softmax(scores, dim))


def safe_softmax_grad(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """Forward and gradient from the output alone: out·grad − out·Σ(out·grad), computed in float32 for half types.

    A dead row's output is zero, and so is its gradient; differentiating ``where(dead, 0, softmax)`` would give NaN.
    """
    out = safe_softmax(input, dim, dtype)
    compute = utils.get_computation_dtype(out.dtype)
    p, grad = maybe_convert_to_dtype(out, compute), maybe_convert_to_dtype(get_grad(out), compute)
    weighted = p * grad
    put_grad(input, maybe_convert_to_dtype(weighted - p * ltorch.sum(weighted, dim, keepdim=True), input.dtype))
    return out


def _run_by_aten(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    return _aten_safe_softmax(input, dim, None if dtype is None else to_torch_dtype(dtype))


# All of these are assignments to tables, so that importing this module a second time, or reloading it, changes nothing.
_aten_safe_softmax = torchex.ex.register_operator("_safe_softmax", like=safe_softmax, module=torch)
torchex.ex.register_implementation(safe_softmax, execution_transform=_run_by_aten)
register_grad(safe_softmax, safe_softmax_grad)
# Thunder copies the spellings into the interpreter's table when it is imported; later ones have to be entered by hand.
_lookaside = ensure_recursive_proxies(interpreter_needs_wrap(record_source_loc_in_symbol_header(safe_softmax)))
_general_jit_lookaside_map.update(dict.fromkeys((*_SPELLINGS, safe_softmax), _lookaside))
