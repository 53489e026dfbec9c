"""Triton-Ascend kernels without an NPU: triton-ascend's own front end, BiShengIR's memory plan, execution on this CPU.

    from thunder_npu.virtual_npu import triton_cpu
    triton_cpu.install(soc="Ascend910B2")
    kernel[grid](…)                                # CPU tensors, or tensors of the virtual NPU

What is real: Triton's JIT, its specialisation, autotuner and cache, the lowering to linalg, the check of the unified
buffer with the compiler's own messages. What is not: the closed back end hivmc, how an NPU rounds its functions, speed.
A kernel may not leave its arguments' storages: reads outside give NaN, as unwritten scratch memory does, and a store
outside is an error. Names are loaded on first use, so that importing this package needs neither triton nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..soc import DEFAULT_SOC, SOCS, SoC
    from .bishengir import BufferReport, UnifiedBufferRetryWarning
    from .compilation import Kernel, compile_kernel
    from .driver import compile_reports, install, installed, overflowing
    from .execution import OutOfBoundsStoreError, scratch_bytes_live
    from .lowering import UnsupportedOperationError
    from .toolchain import ToolchainError

_HOMES = {
    "DEFAULT_SOC": "..soc",
    "SOCS": "..soc",
    "SoC": "..soc",
    "BufferReport": ".bishengir",
    "UnifiedBufferRetryWarning": ".bishengir",
    "Kernel": ".compilation",
    "compile_kernel": ".compilation",
    "compile_reports": ".driver",
    "install": ".driver",
    "installed": ".driver",
    "overflowing": ".driver",
    "OutOfBoundsStoreError": ".execution",
    "scratch_bytes_live": ".execution",
    "UnsupportedOperationError": ".lowering",
    "ToolchainError": ".toolchain",
}

__all__ = [
    "DEFAULT_SOC",
    "SOCS",
    "BufferReport",
    "Kernel",
    "OutOfBoundsStoreError",
    "SoC",
    "ToolchainError",
    "UnifiedBufferRetryWarning",
    "UnsupportedOperationError",
    "compile_kernel",
    "compile_reports",
    "install",
    "installed",
    "overflowing",
    "scratch_bytes_live",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
