"""Losses as PyTorch spells them, and ``torch.where`` of two numbers.

Label smoothing in Thunder 0.2.6 divides the sum over all rows, the ignored ones too, by the number of those that are
not ignored; with weights it gathers at the ignored index; and ``F.nll_loss`` ignores -1 instead of -100. The formulas
below are those of ATen (LossNLL.cpp, cross_entropy_loss_label_smoothing).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Number
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import NumberProxy, TensorProxy, pytype
from thunder.extend import Executor

from thunder_npu.mends.mend import Mend
from thunder_npu.transforms.rewrite import register_lookaside


def _smoothed(
    input: TensorProxy, target: TensorProxy, weight: TensorProxy | None, ignore_index: int, reduction: str, eps: float
) -> TensorProxy:
    axis = 1 if input.ndim >= 2 else 0
    classes = input.shape[axis]
    logits = ltorch.log_softmax(input, axis)
    nll = ltorch.nll_loss(logits, target, weight, ignore_index, reduction)
    shape = tuple(classes if d == axis else 1 for d in range(input.ndim))
    weighted = logits if weight is None else logits * ltorch.reshape(weight, shape)
    valid = target != ignore_index
    smooth = ltorch.where(valid, -ltorch.sum(weighted, axis), 0)
    if reduction == "sum":
        smooth = ltorch.sum(smooth)
    elif reduction == "mean":
        if weight is None:
            total = ltorch.sum(ltorch.to(valid, dtypes.float32))
        else:
            rows = ltorch.reshape(ltorch.where(valid, target, 0), (target.numel(),))
            chosen = ltorch.index_select(weight, 0, rows)
            total = ltorch.sum(ltorch.where(ltorch.reshape(valid, (target.numel(),)), chosen, 0))
        smooth = ltorch.sum(smooth) / ltorch.to(total, smooth.dtype)
    return (1 - eps) * nll + (eps / classes) * smooth


def _cross_entropy(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> TensorProxy:
    if label_smoothing == 0 or input.shape == target.shape or input.numel() == 0:
        return ltorch.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    if size_average is not None or reduce is not None:
        raise NotImplementedError("cross_entropy: size_average and reduce cannot be traced, say reduction= instead")
    ltorch._cross_entropy_input_checks(input, target, weight, ignore_index, reduction, label_smoothing)
    return _smoothed(input, target, weight, ignore_index, reduction, label_smoothing)


def _nll_loss(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    if size_average is not None or reduce is not None:
        raise NotImplementedError("nll_loss: size_average and reduce cannot be traced, say reduction= instead")
    return ltorch.nll_loss(input, target, weight, ignore_index, reduction)


def _is_number(a: Any) -> bool:
    return isinstance(a, (Number, NumberProxy)) and not isinstance(a, complex)


def _where(
    behind: Callable[..., TensorProxy], condition: TensorProxy, input: Any = None, other: Any = None, **kwargs: Any
) -> TensorProxy:
    """torch.where; two numbers make a tensor of the default dtype (int64, bool, where neither is a float).

    ``behind`` runs all other calls: the executor's lookaside for guards of a softmax.
    """
    if not (_is_number(input) and _is_number(other)) or kwargs:
        return behind(condition, input, other, **kwargs)
    kinds = {pytype(input), pytype(other)}
    dtype = ltorch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
    chosen = ltorch.full(condition.shape, input, device=condition.device, dtype=dtype)
    return ltorch.where(condition, chosen, ltorch.full(condition.shape, other, device=condition.device, dtype=dtype))


def _losses(executor: Executor | None) -> None:
    register_lookaside(executor, (F.cross_entropy, ltorch.cross_entropy), _cross_entropy)
    register_lookaside(executor, (F.nll_loss, ltorch.nll_loss), _nll_loss)


def _numbers(executor: Executor | None) -> None:
    assert executor is not None
    for spelling in (torch.where, ltorch.where):
        behind = executor._lookasides.get(spelling, ltorch.where)
        register_lookaside(executor, (spelling,), partial(_where, behind))


LOSSES = Mend("label smoothing with ignored rows gives another loss, or raises; F.nll_loss ignores -1", _losses)
NUMBERS = Mend("torch.where of two numbers has no dtype on a device that is not the CPU", _numbers)
