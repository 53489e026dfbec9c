"""``torch.eye`` and ``Tensor.data``, which Thunder 0.2.6 does not know, and ``torch.zeros`` without axes.

``torch.eye`` is a lookaside of the executors: a comparison of two ``arange``, all of them symbols that Thunder has.
``Tensor.data`` is an attribute of Thunder's proxies, which no executor can own. The gradient that nothing reached is
zeros of its shape, given to ``torch.zeros`` size by size; that of a 0-d tensor then raises ("zeros() received an
invalid combination of arguments"), as in the backward of ``torch.linalg.slogdet``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.jit_ext import record_source_loc_in_symbol_header
from thunder.core.proxies import TensorProxy
from thunder.executors import torchex
from thunder.extend import Executor

from thunder_npu.mends.mend import Mend, not_newer_than_tried


def eye(
    n: int,
    m: int | None = None,
    *,
    out: Any = None,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> TensorProxy:
    """The ``(n, m)`` matrix (``m`` is ``n`` by default) of ones on the diagonal, zeros elsewhere.

    Raises:
        RuntimeError, TypeError: for sizes that ``torch.eye`` refuses, in its words.
        NotImplementedError: for ``out``, a layout that is not strided, ``pin_memory`` and ``requires_grad``.
    """
    unknown = {"out": out, "pin_memory": pin_memory, "requires_grad": requires_grad, "layout": layout != torch.strided}
    if asked := [name for name, value in unknown.items() if value is not None and value is not False]:
        raise NotImplementedError(f"torch.eye inside of thunder.jit does not take {', '.join(asked)}: leave it out")
    rows, columns = torch.eye(n, *(() if m is None else (m,)), device="meta").shape  # eager's errors
    if not rows * columns:  # Thunder's arange(0) has no dimension
        return ltorch.zeros(rows, columns, dtype=dtype, device=device)
    row = ltorch.unsqueeze(ltorch.arange(rows, device=device), 1)
    diagonal = ltorch.eq(row, ltorch.arange(columns, device=device))
    return ltorch.to(diagonal, ltorch.maybe_get_default_dtype(dtype))


def _eye(executor: Executor | None) -> None:
    assert executor is not None
    executor._lookasides[torch.eye] = record_source_loc_in_symbol_header(eye)


def _eye_needed() -> bool:
    return not_newer_than_tried() and torch.eye not in ltorch._torch_to_thunder_function_map


def _data(executor: Executor | None) -> None:
    TensorProxy.data = property(lambda tensor: tensor.detach())


def _data_needed() -> bool:
    return not_newer_than_tried() and not hasattr(TensorProxy, "data")


def _zeros(executor: Executor | None) -> None:
    info = torchex.ex.implmap[ltorch.zeros.id]
    original = info.execution_transform
    if original is None or getattr(original, "takes_no_axes", False):
        return

    @wraps(original)
    def zeros(*shape: Any, **kwargs: Any) -> TensorProxy:
        return original(*(shape or ((),)), **kwargs)

    zeros.takes_no_axes = True  # type: ignore[attr-defined]
    info.execution_transform = zeros


EYE = Mend("torch.eye raises NotImplementedError", _eye, _eye_needed)
DATA = Mend("Tensor.data raises AttributeError", _data, _data_needed)
ZEROS = Mend("the gradient that nothing reached of a 0-d tensor raises in torch.zeros", _zeros)
