"""The softmax family through ATen's direct entry points: no autograd, no composite detour.

On an npu tensor torch_npu implements each with one aclnn operator; on a CPU tensor it is ATen's CPU kernel, which both
executors use as their reference path.
"""

from __future__ import annotations

import math

import torch


def softmax(a: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """aclnnSoftmax, after a cast if ``dtype`` is given."""
    return torch._softmax(a if dtype is None else a.to(dtype), dim, False)


def log_softmax(a: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """aclnnLogSoftmax, after a cast if ``dtype`` is given."""
    return torch._log_softmax(a if dtype is None else a.to(dtype), dim, False)


def safe_softmax(a: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """aclnnSoftmax with exact zeros in the rows of ``a`` that hold only -inf (judged before the cast, as ATen does)."""
    if a.device.type == "cpu":
        return torch._safe_softmax(a, dim, dtype)  # as eager: four calls from Python add 4 µs to ATen's 4
    dead = torch.eq(a, -math.inf).all(dim, keepdim=True)
    return softmax(a, dim, dtype).masked_fill_(dead, 0.0)


def softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """aclnnSoftmaxBackward: grad·out − out·Σ(grad·out) in the dtype of ``out``, then a cast as autograd's is."""
    return torch._softmax_backward_data(grad, out, dim, out.dtype).to(input_dtype)


def log_softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """aclnnLogSoftmaxBackward: grad − exp(out)·Σgrad in the dtype of ``out``, then a cast as autograd's is."""
    return torch._log_softmax_backward_data(grad, out, dim, out.dtype).to(input_dtype)
