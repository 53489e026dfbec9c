"""Run a kernel's shared library on the CPU: argument marshalling and the launch over the grid.

Pointers are host memory: CPU tensors, or tensors of the virtual NPU. Nothing here compiles anything.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .lowering import ENTRY, SERIAL_ENTRY
from .toolchain import fingerprint, link

__all__ = ["Library", "pack_arguments", "scratch_bytes_live"]

# One slot of eight bytes an argument, little-endian, by Triton's type name.
_SLOTS = {
    "i1": "?7x",
    "i8": "b7x",
    "i16": "h6x",
    "i32": "i4x",
    "i64": "q",
    "u1": "?7x",
    "u8": "B7x",
    "u16": "H6x",
    "u32": "I4x",
    "u64": "Q",
    "fp16": "e6x",
    "fp32": "f4x",
    "f32": "f4x",
    "fp64": "d",
}


@functools.cache
def _runtime() -> ctypes.CDLL:
    """The C runtime, built once into Triton's cache; kernels resolve its symbols from the global scope."""
    from triton.runtime.cache import get_cache_manager

    cache = get_cache_manager(fingerprint())
    path = cache.get_file("runtime.so")
    if path is None:
        with tempfile.TemporaryDirectory() as directory:
            library = Path(directory, "runtime.so")
            link(library, Path(__file__).with_name("runtime.c"), options=("-O2", "-std=gnu11"))
            path = cache.put(library.read_bytes(), "runtime.so", binary=True)
    runtime = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    runtime.thunder_npu_launch.restype = None
    runtime.thunder_npu_launch.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_int32] * 4]
    runtime.thunder_npu_scratch_live.restype = ctypes.c_int64
    return runtime


def pack_arguments(signature: Sequence[str]) -> Callable[..., bytes]:
    """A function that packs a launch's arguments for the library.

    Args:
        signature: Triton's type of every run-time argument, in order ("*fp32", "i32", …).

    Raises:
        TypeError: a scalar type that cannot be passed, by its name.
    """
    for kind in signature:
        if not kind.startswith("*") and kind not in _SLOTS:
            raise TypeError(f"a kernel argument of type {kind} cannot be passed; known: pointers, {', '.join(_SLOTS)}")
    pack = struct.Struct("<" + "".join("Q" if kind.startswith("*") else _SLOTS[kind] for kind in signature)).pack
    pointers = [i for i, kind in enumerate(signature) if kind.startswith("*")]

    def packed(*arguments: Any) -> bytes:
        values = list(arguments)
        for i in pointers:
            value = values[i]
            values[i] = 0 if value is None else value if isinstance(value, int) else value.data_ptr()
        return pack(*values)

    return packed


class Library:
    """A kernel's shared library, loaded from its bytes."""

    def __init__(self, binary: bytes) -> None:
        self._runtime = _runtime()
        # dlopen knows a library by its path: a fresh name each time, removed once mapped.
        with tempfile.NamedTemporaryFile(prefix="thunder_npu_", suffix=".so") as file:
            file.write(binary)
            file.flush()
            self._library = ctypes.CDLL(file.name)
        self._serial = hasattr(self._library, SERIAL_ENTRY)
        function = getattr(self._library, SERIAL_ENTRY if self._serial else ENTRY)
        self._entry = ctypes.cast(function, ctypes.c_void_p).value

    def launch(self, grid: tuple[int, int, int], arguments: bytes) -> None:
        """Run all programs of `grid`, on as many threads as torch's CPU operators use, and wait for them."""
        threads = 1 if self._serial else torch.get_num_threads()
        self._runtime.thunder_npu_launch(self._entry, arguments, *grid, threads)


def scratch_bytes_live() -> int:
    """Scratch memory that kernels hold right now, in bytes: zero between launches, unless a kernel leaks."""
    return int(_runtime().thunder_npu_scratch_live())
