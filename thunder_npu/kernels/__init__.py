"""Triton kernels of the softmax family, for Ascend NPUs and CUDA, and the launch plans that fit them to a device.

Imports torch and (on the first launch) triton, never thunder. The functions take npu or cuda tensors, or CPU tensors
while the virtual NPU's Triton driver is active; they never fall back to ATen.
"""

from .launch import KernelCompileError, target_of
from .plan import Plan, Target, ascend_target, plan_one_pass, rows_per_tile
from .softmax import (
    log_softmax,
    log_softmax_backward,
    safe_softmax,
    safe_softmax_backward,
    softmax,
    softmax_backward,
    unsupported,
)

__all__ = [
    "KernelCompileError",
    "Plan",
    "Target",
    "ascend_target",
    "log_softmax",
    "log_softmax_backward",
    "plan_one_pass",
    "rows_per_tile",
    "safe_softmax",
    "safe_softmax_backward",
    "softmax",
    "softmax_backward",
    "target_of",
    "unsupported",
]
