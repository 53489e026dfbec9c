"""The executor "triton_ascend": softmax rows in Triton kernels, each fused with its neighbours (fusion.py).

On npu tensors the kernels run through Triton-Ascend, on cuda tensors the same source through upstream Triton. On CPU
tensors the operators run ATen's CPU kernels, the reference path, which the report names as such.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from thunder.extend import register_executor

from thunder_npu import kernels
from thunder_npu.executors import aten
from thunder_npu.executors.fusion import TritonAscendExecutor
from thunder_npu.executors.softmax_family import Implementation, register


def _by_device(kernel: Callable[..., torch.Tensor], on_cpu: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``kernel`` for tensors on a device, ``on_cpu`` for tensors in host memory."""

    def run(a: torch.Tensor, *args: object) -> torch.Tensor:
        return on_cpu(a, *args) if a.device.type == "cpu" else kernel(a, *args)

    return run


triton_ascend_ex = TritonAscendExecutor("triton_ascend")
register_executor(triton_ascend_ex)
register(
    triton_ascend_ex,
    {
        "softmax": Implementation(
            _by_device(kernels.softmax, aten.softmax),
            _by_device(kernels.softmax_backward, aten.softmax_backward),
        ),
        "log_softmax": Implementation(
            _by_device(kernels.log_softmax, aten.log_softmax),
            _by_device(kernels.log_softmax_backward, aten.log_softmax_backward),
        ),
        "safe_softmax": Implementation(
            _by_device(kernels.safe_softmax, aten.safe_softmax),
            _by_device(kernels.safe_softmax_backward, aten.softmax_backward),
        ),
    },
)
