"""A virtual Ascend NPU: the real torch_npu and Triton-Ascend on a machine that has none.

    python -m thunder_npu.virtual_npu script.py        # or -m module, or -c code

    from thunder_npu import virtual_npu
    virtual_npu.enable()                               # first thing in a program

It stands in for the CANN libraries: device memory is host memory, and aclnn operators run ATen's CPU kernels on it. It
proves dispatch, arguments, autograd wiring, compilation and host numerics, never speed or the NPU's own rounding
(docs/virtual_npu.md). Importing this package imports neither torch nor torch_npu, nor the rest of thunder_npu.
"""

from thunder_npu.virtual_npu.activation import enable
from thunder_npu.virtual_npu.faults import clear_faults, inject_fault, operators, reset_device
from thunder_npu.virtual_npu.memory import Memory, leak_check, memory, reset_peak, set_memory_limit
from thunder_npu.virtual_npu.recording import (
    AclnnCall,
    Recording,
    TensorArg,
    TritonLaunch,
    counters,
    record,
    reset_counters,
    summary,
)

__all__ = [
    "AclnnCall",
    "Memory",
    "Recording",
    "TensorArg",
    "TritonLaunch",
    "clear_faults",
    "counters",
    "enable",
    "inject_fault",
    "leak_check",
    "memory",
    "operators",
    "record",
    "reset_counters",
    "reset_device",
    "reset_peak",
    "set_memory_limit",
    "summary",
]
