"""softmax, log_softmax, safe_softmax and their backwards as functions of tensors, each one kernel launch.

Results equal eager PyTorch's within rounding; arithmetic is float32. Shapes, dtypes and dims are checked here; the rest
is launch.py's.
"""

from __future__ import annotations

import torch

from .launch import launch

__all__ = [
    "log_softmax",
    "log_softmax_backward",
    "safe_softmax",
    "safe_softmax_backward",
    "softmax",
    "softmax_backward",
    "unsupported",
]

SUPPORTED = (torch.float32, torch.float16, torch.bfloat16)
MAX_WIDTH = 2**31 - 2**16  # column numbers are int32, also at the end of the last block


def unsupported(op: str, dtype_in: torch.dtype, dtype_out: torch.dtype) -> str | None:
    """None if the kernels can run `op` from one dtype to the other, else the reason in words."""
    for role, dtype in (("input", dtype_in), ("result", dtype_out)):
        if dtype not in SUPPORTED:
            name = str(dtype).removeprefix("torch.")
            return f"{op}: the kernels compute in float32 and take float32, float16 and bfloat16; the {role} is {name}"
    return None


def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.softmax: contiguous, of x's shape, and of `dtype` if given (x is cast to it first), else of x's.

    Raises:
        TypeError: a dtype that the kernels do not take (see `unsupported`).
        IndexError: dim out of range.
        KernelCompileError: the kernel does not compile for the device.
    """
    return _forward("softmax", x, dim, dtype)


def log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.log_softmax; as `softmax`."""
    return _forward("log_softmax", x, dim, dtype)


def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch._safe_softmax: rows of nothing but -inf give zeros; otherwise as `softmax`, NaN where a row holds NaN."""
    return _forward("safe_softmax", x, dim, dtype)


def softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """Gradient of softmax's input, of dtype `input_dtype`: grad·out − out·Σ(grad·out).

    Args:
        grad, out: gradient of the result and the result, of one shape; any strides, expanded ones included.

    Raises:
        ValueError: different shapes or devices; else as `softmax`.
    """
    return _backward("softmax_backward", grad, out, dim, input_dtype)


def log_softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """Gradient of log_softmax's input: grad − exp(out)·Σ grad; as `softmax_backward`."""
    return _backward("log_softmax_backward", grad, out, dim, input_dtype)


def safe_softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """As `softmax_backward`: rows of zeros in `out` get a gradient of exactly zero, for finite `grad`."""
    return _backward("softmax_backward", grad, out, dim, input_dtype)


def _forward(op: str, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    return _apply(op, (x,), dim, x.dtype if dtype is None else dtype)


def _backward(op: str, grad: torch.Tensor, out: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    if grad.shape != out.shape or grad.device != out.device:
        raise ValueError(
            f"{op}: grad is {tuple(grad.shape)} on {grad.device}, out is {tuple(out.shape)} on {out.device}; "
            "they must agree"
        )
    return _apply(op, (grad, out), dim, input_dtype)


def _apply(op: str, inputs: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype) -> torch.Tensor:
    for tensor in inputs:
        if reason := unsupported(op, tensor.dtype, dtype):
            raise TypeError(reason)
    shape = inputs[0].shape
    rank = max(1, len(shape))
    if not -rank <= dim < rank:
        raise IndexError(f"{op}: dim {dim} is out of range for {len(shape)} dimensions")
    dim %= rank
    if shape and shape[dim] > MAX_WIDTH:
        raise ValueError(f"{op}: rows of {shape[dim]} elements; the kernels take up to {MAX_WIDTH}")
    result = torch.empty(shape, dtype=dtype, device=inputs[0].device)
    if result.numel():
        launch(op, inputs, result, dim)
    return result
