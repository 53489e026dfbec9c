"""Run a kernel's shared library on the CPU: argument marshalling and the launch over the grid.

Pointers are host memory: CPU tensors, or tensors of the virtual NPU. Nothing here compiles anything.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from thunder_npu import cache

from .lowering import ENTRY, SERIAL_ENTRY
from .toolchain import fingerprint, link

__all__ = ["Arguments", "Library", "OutOfBoundsStoreError", "scratch_bytes_live"]

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

_ANY_ADDRESS = 2**63 - 1


@functools.cache
def _runtime() -> ctypes.CDLL:
    """The C runtime, built once into the cache; kernels resolve its symbols from the global scope."""
    path = cache.directory("triton_cpu") / f"runtime-{fingerprint()}.so"
    with cache.locked(path):
        if not cache.intact(path):
            with tempfile.TemporaryDirectory() as directory:
                library = Path(directory, "runtime.so")
                link(library, Path(__file__).with_name("runtime.c"), options=("-O2", "-std=gnu11"))
                cache.write(path, library.read_bytes())
            cache.seal(path)
    runtime = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    runtime.thunder_npu_launch.restype = ctypes.c_int32
    runtime.thunder_npu_launch.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int64,
        *[ctypes.c_int32] * 4,
        ctypes.c_void_p,
    ]
    runtime.thunder_npu_scratch_live.restype = ctypes.c_int64
    return runtime


class OutOfBoundsStoreError(RuntimeError):
    """A kernel stored outside the storage of one of its arguments; the store was dropped."""


class _StrayStore(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("program", ctypes.c_int64 * 3),
    )


class Arguments:
    """Packs the run-time arguments of one kernel signature for `Library.launch`."""

    def __init__(self, signature: Mapping[str, str]) -> None:
        """`signature`: Triton's type of every run-time argument ("*fp32", "i32", …), by name, in order.

        Raises:
            TypeError: a scalar type that cannot be passed, by its name.
        """
        for name, kind in signature.items():
            if not kind.startswith("*") and kind not in _SLOTS:
                raise TypeError(f"kernel argument {name} has type {kind}; known: pointers, {', '.join(_SLOTS)}")
        self.names = list(signature)
        formats = ["Q" if kind.startswith("*") else _SLOTS[kind] for kind in signature.values()]
        self._pointers = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
        self._values = struct.Struct("<" + "".join(formats)).pack
        self._storages = struct.Struct(f"<{3 * len(formats)}Q").pack

    def pack(self, arguments: Sequence[Any]) -> tuple[bytes, bytes]:
        """(values, storages): a slot of eight bytes for every argument; pointer, begin and end of its storage."""
        values = list(arguments)
        storages = [0] * (3 * len(values))
        for i in self._pointers:
            value = values[i]
            if value is None:
                pointer, begin, end = 0, 0, 0
            elif isinstance(value, int):  # an address: nothing is known of its storage
                pointer, begin, end = value, 0, _ANY_ADDRESS
            else:
                storage = getattr(value, "base", value).untyped_storage()  # .base: triton.TensorWrapper
                pointer, begin = value.data_ptr(), storage.data_ptr()
                end = begin + storage.nbytes()
            values[i] = pointer
            storages[3 * i : 3 * i + 3] = pointer, begin, end
        return self._values(*values), self._storages(*storages)


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

    def launch(self, kernel: str, grid: tuple[int, int, int], arguments: Arguments, values: Sequence[Any]) -> None:
        """Run all programs of `grid`, on as many threads as torch's CPU operators use, and wait for them.

        Raises:
            OutOfBoundsStoreError: naming the program and the argument of the first store outside a storage.
        """
        packed, storages = arguments.pack(values)
        threads = 1 if self._serial else torch.get_num_threads()
        stray = _StrayStore()
        count = self._runtime.thunder_npu_launch(
            self._entry, packed, storages, len(arguments.names), *grid, threads, ctypes.byref(stray)
        )
        if count:
            raise OutOfBoundsStoreError(
                f"kernel {kernel}, program {tuple(stray.program)}: a store of {stray.bytes} bytes at byte "
                f"{stray.offset} of the storage of argument {arguments.names[stray.argument]}, which has "
                f"{_storage_bytes(storages, stray.argument)} bytes; {count} such stores in this launch"
            )


def _storage_bytes(storages: bytes, argument: int) -> int:
    _, begin, end = struct.unpack_from("<3Q", storages, 24 * argument)
    return int(end - begin)


def scratch_bytes_live() -> int:
    """Scratch memory that kernels hold right now, in bytes: zero between launches, unless a kernel leaks."""
    return int(_runtime().thunder_npu_scratch_live())
