"""Triton's driver, launcher and compiler backend for an Ascend NPU made of host memory.

`install()` makes them Triton's active ones: `kernel[grid](…)` then goes through Triton's real JIT (specialisation,
autotuner, cache, hooks), triton-ascend's own front end, BiShengIR's check of the unified buffer, and runs on the CPU.
No code of Triton is changed: the driver is set by `triton.runtime.driver.set_active`, the backend by `triton.backends`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..recording import note_triton_launch
from ..soc import DEFAULT_SOC, SoC, soc_named
from . import toolchain

toolchain.check()

from triton.backends import backends  # noqa: E402  (only importable once the check has passed)
from triton.backends.ascend import compiler as ascend  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.driver import DriverBase  # noqa: E402
from triton.runtime.driver import driver as triton_driver  # noqa: E402

from .bishengir import BufferReport, UnifiedBufferRetryWarning, plan_buffers  # noqa: E402
from .execution import Arguments, Library  # noqa: E402
from .lowering import build_library  # noqa: E402

__all__ = ["compile_reports", "front_end", "install", "installed", "overflowing"]

_reports: list[BufferReport] = []
_overflowing: set[str] = set()


class AscendOnCPU(ascend.AscendBackend):
    """triton-ascend's backend, whose binary is the BiShengIR report and a shared library for this CPU."""

    @property
    def soc(self) -> SoC:
        return soc_named(self.target.arch)

    def parse_options(self, opts: dict[str, Any]) -> Any:
        """The backend's options; on a 950 with the defaults of a triton-ascend built for it."""
        if self.soc.a5:
            opts = {**_A5_DEFAULTS, **opts}
        return super().parse_options(opts)

    def hash(self) -> str:
        """Part of the key of Triton's on-disk cache."""
        return f"{super().hash()}-{toolchain.fingerprint()}-{sorted(_overflowing)}"

    def binary_stage(self, options: Any) -> Callable[..., bytes]:
        """triton-ascend's own function from linalg to binary."""
        function: Callable[..., bytes] = (
            ascend.linalg_to_bin_enable_npu_compile_910_95
            if options.compile_on_910_95
            else ascend.linalg_to_bin_enable_npu_compile_A2_A3
        )
        return function

    def add_stages(self, stages: dict[str, Callable[..., Any]], options: Any) -> None:
        super().add_stages(stages, options)
        if "ttadapter" not in stages:
            raise NotImplementedError("compile_mode 'simt_only' does not go through linalg and cannot run on the CPU")
        to_binary = self.binary_stage(options)

        def npubin(linalg: str, metadata: dict[str, Any]) -> bytes:
            report = plan_buffers(to_binary, linalg, metadata, options, self.soc)
            if report.kernel in _overflowing:
                report = _overflowed(report)
            if not report.fits:
                # What triton-ascend's own stage raises; Triton turns it into MLIRCompilationError with this text.
                raise subprocess.CalledProcessError(1, self.soc.compiler, stderr=report.message.encode())
            metadata["buffer_report"] = dataclasses.asdict(report)
            return build_library(linalg)

        stages["npubin"] = npubin

    def pack_metadata(self, metadata: Any) -> dict[str, Any]:
        """Called once for every kernel that is compiled or comes from the cache: the place to notice its report."""
        fields = dict(metadata.buffer_report)
        report = BufferReport(**{**fields, "retries": tuple(fields["retries"])})
        _reports.append(report)
        if report.retries:
            warnings.warn(f"slow kernel: {report}", UnifiedBufferRetryWarning, stacklevel=1)
        return {**super().pack_metadata(metadata), "unified_buffer_bytes": report.bytes_planned}


_A5_DEFAULTS = {
    "compile_on_910_95": True,
    "multibuffer": False,
    "enable_auto_bind_sub_block": False,
    "enable_select_analysis": True,
}


class Launcher:
    """What JITFunction.run calls: packs the arguments of one signature and runs the grid."""

    def __init__(self, src: Any, metadata: Any) -> None:
        # The JIT passes every parameter that is not tl.constexpr; those specialised to a constant are not the kernel's.
        self._passed = [i for i, name in enumerate(src.signature) if name not in src.constants]
        self._arguments = Arguments({k: v for k, v in src.signature.items() if k not in src.constants})
        self._name = metadata.kernel_name

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        library: Library,
        packed_metadata: dict[str, Any],
        launch_metadata: Any,
        enter_hook: Callable[[Any], None] | None,
        exit_hook: Callable[[Any], None] | None,
        *arguments: Any,
    ) -> None:
        grid = int(grid_x), int(grid_y), int(grid_z)
        values = [arguments[i] for i in self._passed]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        start = time.monotonic_ns()
        library.launch(self._name, grid, self._arguments, values)
        end = time.monotonic_ns()
        if exit_hook is not None:
            exit_hook(launch_metadata)
        note_triton_launch(self._name, grid, packed_metadata["unified_buffer_bytes"], start, end)


class Utilities:
    """`driver.active.utils`, with the real driver's methods and key names."""

    def __init__(self, soc: SoC) -> None:
        self._soc = soc

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Core counts of the SoC; max_shared_mem is the real driver's placeholder."""
        return {
            "max_shared_mem": 1,
            "num_aicore": self._soc.cube_cores,
            "num_vectorcore": self._soc.vector_cores,
        }

    def get_arch(self) -> str:
        return self._soc.name

    def get_aicore_num(self) -> int:
        return self._soc.cube_cores

    def get_aivector_core_num(self) -> int:
        return self._soc.vector_cores

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Library, int, int]:
        """(module, function, registers, spills) of a compiled kernel; the last two mean nothing on an NPU."""
        library = Library(binary)
        return library, library, 0, 0


class DeviceIndex(int):
    """A device's index that differs from the same index of another machine: another SoC, or other injected faults.

    Triton keeps compiled kernels in memory by device; this keeps those of one machine from being launched on another.
    """

    machine: tuple[str, ...]

    def __new__(cls, index: int, machine: tuple[str, ...]) -> DeviceIndex:
        self = super().__new__(cls, index)
        self.machine = machine
        return self

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) is True and self.machine == getattr(other, "machine", self.machine)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class Driver(DriverBase):
    """Triton's active driver: one SoC, as many devices as torch_npu sees, or one when it is not in use."""

    launcher_cls = Launcher

    def __init__(self, soc: SoC) -> None:
        super().__init__()
        self.soc = soc
        self.utils = Utilities(soc)

    @classmethod
    def is_active(cls) -> bool:
        return False  # never chosen by Triton itself, only by install()

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("npu", self.soc.name, 0)

    def get_current_device(self) -> int:
        return DeviceIndex(npu.current_device() if (npu := _npu()) else 0, (self.soc.name, *sorted(_overflowing)))

    def set_current_device(self, device: int) -> None:
        if npu := _npu():
            npu.set_device(int(device))

    def get_current_stream(self, device: int | None = None) -> int:
        """The current stream's address, or 0 on the CPU.

        torch_npu empties its task queue before it gives the address away: operators queued earlier have run then.
        """
        if not _npu():
            return 0
        raw_stream: Callable[[int], int] = sys.modules["torch_npu"]._C._npu_getCurrentRawStream
        return raw_stream(int(self.get_current_device() if device is None else device))

    def get_active_torch_device(self) -> torch.device:
        return torch.device("npu", int(self.get_current_device())) if _npu() else torch.device("cpu")

    def get_device_interface(self) -> Any:
        return vars(torch)["npu"]

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int32)  # no cache of the NPU to flush

    def get_benchmarker(self) -> Callable[..., Any]:
        return _benchmark


def _npu() -> Any:
    """torch.npu, or None when torch_npu is not loaded or sees no device."""
    npu = vars(torch).get("npu")
    return npu if npu is not None and npu.is_available() else None


def _benchmark(function: Callable[[], Any], quantiles: Sequence[float] | None = None, **_: Any) -> Any:
    """Times `function` for the autotuner: milliseconds, one per quantile, or the median.

    The first call compiles and is not counted; CPU time says little about an NPU, so a few calls are enough.
    """
    function()
    times = []
    for _repeat in range(3):
        start = time.monotonic_ns()
        function()
        times.append((time.monotonic_ns() - start) / 1e6)
    measured = torch.tensor(times, dtype=torch.float64)
    return measured.median().item() if quantiles is None else measured.quantile(measured.new_tensor(quantiles)).tolist()


def front_end(soc: SoC) -> AscendOnCPU:
    """The compiler backend for `soc`, without making it Triton's active one."""
    return AscendOnCPU(GPUTarget("npu", soc.name, 0))


def install(soc: str = DEFAULT_SOC) -> None:
    """Make the CPU Triton's active device, as an NPU of the given SoC.

    Idempotent; a later call may change the SoC, and kernels are then compiled anew for it.

    Raises:
        ValueError: unknown SoC.
        ToolchainError: no C compiler.
    """
    chosen = soc_named(soc)
    toolchain.c_compiler()
    backends["ascend"] = dataclasses.replace(backends["ascend"], compiler=AscendOnCPU)
    triton_driver.set_active(Driver(chosen))


def installed() -> bool:
    """Whether this driver is Triton's active one."""
    return isinstance(triton_driver.active, Driver)


@contextlib.contextmanager
def overflowing(kernel: str) -> Iterator[None]:
    """A fault on demand: meanwhile the compiler refuses `kernel` as if it overflowed the unified buffer.

    Launching it raises triton.compiler.errors.MLIRCompilationError, also when it has been compiled before.
    """
    _overflowing.add(kernel)
    try:
        yield
    finally:
        _overflowing.discard(kernel)


def _overflowed(report: BufferReport) -> BufferReport:
    available = 8 * report.bytes_available
    message = f"error: ub overflow, requires {2 * available} bits while {available} bits available! (fault injected)"
    return dataclasses.replace(report, fits=False, bytes_planned=2 * report.bytes_available, message=message, hivm="")


def compile_reports() -> list[BufferReport]:
    """One report for every kernel that the JIT has compiled, or loaded from Triton's cache, in this process."""
    return list(_reports)
