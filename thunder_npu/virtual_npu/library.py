"""The loaded stand-in CANN library: one handle a process, and its C functions as Python ones.

Building it is build.py's business, deciding when to load it `enable`'s; nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

_handle: ctypes.CDLL | None = None


def attach(handle: ctypes.CDLL) -> None:
    """Declare the C functions of a freshly loaded runtime library and make it the process's one."""
    global _handle
    for name, result, *arguments in (
        ("vnpu_record", None, ctypes.c_int),
        ("vnpu_event_count", ctypes.c_uint64),
        ("vnpu_events", ctypes.c_void_p, ctypes.c_uint64),
        ("vnpu_counters", ctypes.c_void_p),
        ("vnpu_reset_counters", None),
        ("vnpu_memory", ctypes.c_void_p),
        ("vnpu_reset_peak", None),
        ("vnpu_set_memory_limit", None, ctypes.c_uint64),
        ("vnpu_operators", ctypes.c_void_p),
        ("vnpu_fail_operator", None, ctypes.c_char_p, ctypes.c_int64),
        ("vnpu_clear_operator_faults", None),
        ("vnpu_fail_allocations", None, ctypes.c_int64),
        ("vnpu_set_lost", None, ctypes.c_int, ctypes.c_int),
        ("vnpu_free", None, ctypes.c_void_p),
    ):
        function = getattr(handle, name)
        function.restype = result
        function.argtypes = arguments
    _handle = handle


def loaded() -> ctypes.CDLL | None:
    """The library, or None in a process without a virtual NPU (Triton kernels on CPU tensors need none)."""
    return _handle


def require() -> ctypes.CDLL:
    """The library; RuntimeError where `enable` has not run."""
    if _handle is None:
        raise RuntimeError(
            "the virtual NPU is not enabled in this process: call thunder_npu.virtual_npu.enable() first, "
            "or start the program with python -m thunder_npu.virtual_npu"
        )
    return _handle


def text(function: str, *arguments: int) -> str:
    """Call a function that returns a string allocated by the library, and free it."""
    handle = require()
    pointer = getattr(handle, function)(*arguments)
    try:
        value = ctypes.string_at(pointer).decode()
    finally:
        handle.vnpu_free(pointer)
    return value


def data(function: str, *arguments: int) -> Any:
    """Like `text`, for functions that return JSON."""
    return json.loads(text(function, *arguments))
