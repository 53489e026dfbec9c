"""Ask BiShengIR whether a kernel fits the unified buffer of an SoC, as compiling for that SoC would.

The compiler's command is the one that triton-ascend itself would run: its own stage function builds it, with the names
through which that function reaches the machine (the compiler's path, the NPU's name, `subprocess`) replaced. All up to
the closed back end `hivmc` then runs: fusion, vectorisation, memory planning, synchronisation. In place of `hivmc`,
which ascendnpu-ir lacks, the compiler finds `true`: its success means that everything before the back end succeeded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..soc import SoC
from .toolchain import program

__all__ = ["BufferReport", "UnifiedBufferRetryWarning", "after_hfusion", "plan_buffers"]

_BACK_ENDS = ("hivmc", "hivmc-a5")
_RETRY = re.compile(r"\[NOTE\] Ub overflow detected; automatically set (\S+)")
_OVERFLOW = re.compile(r"ub overflow, requires (\d+) bits while (\d+) bits available", re.IGNORECASE)
_BUFFER = re.compile(
    r"hivm\.hir\.pointer_cast\(([^)]*)\)[^:\n]*: memref<((?:\d+x)*)([a-z]+)(\d+)[^\n]*#hivm\.address_space<ub>>"
)
_LAST_HFUSION_PASS = "hfusion-hoist-tensor-empty"
_DUMP = re.compile(r"^// -----// IR Dump After .*$", re.M)
_OFFSET = re.compile(r"(%\w+) = arith\.constant (\d+) : i64")


class UnifiedBufferRetryWarning(UserWarning):
    """A kernel only fits the unified buffer because the compiler silently gave up an optimisation: it will be slow."""


@dataclass(frozen=True)
class BufferReport:
    """What BiShengIR found out about one compiled kernel."""

    kernel: str
    soc: str
    fits: bool
    bytes_planned: int
    """Unified buffer in use, in bytes: the end of the last buffer; when it does not fit, what would be needed."""
    bytes_available: int
    retries: tuple[str, ...]
    """Options that the compiler switched off, one after the other, because the buffer overflowed with them."""
    message: str
    """The compiler's diagnostics when the kernel does not fit, else empty."""
    hivm: str
    """The planned HIVM module, empty when the kernel does not fit."""

    def __str__(self) -> str:
        share = f"{self.bytes_planned:,} of {self.bytes_available:,} bytes of unified buffer on {self.soc}"
        verdict = "" if self.fits else ", does not fit"
        retried = f", only after {', '.join(self.retries)}" if self.retries else ""
        return f"{self.kernel}: {share}{verdict}{retried}"


def plan_buffers(
    stage: Callable[..., bytes], linalg: str, metadata: dict[str, Any], options: Any, soc: SoC
) -> BufferReport:
    """Run BiShengIR on a kernel and read off its memory plan.

    Args:
        stage: triton-ascend's function from linalg to binary.
        linalg: the text of its "ttadapter" stage.
        metadata: the kernel's metadata; the stage adds to it (kernel_name, mix_mode, …).
        options: the backend's options.
        soc: what to compile for.

    Raises:
        subprocess.CalledProcessError: the compiler failed for another reason than the unified buffer's size.
    """
    reports: list[BufferReport] = []

    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        with tempfile.TemporaryDirectory() as directory:
            result = _compile(command, soc, f"--save-temps={directory}")
            hivm = Path(directory, "module.hivm.opt.mlir").read_text(encoding="utf-8") if result.returncode == 0 else ""
        reports.append(_report(metadata["kernel_name"], soc, result, hivm))
        return result

    _run_stage(stage, linalg, metadata, options, soc, run)
    return reports[0]


def after_hfusion(stage: Callable[..., bytes], linalg: str, metadata: dict[str, Any], options: Any, soc: SoC) -> str:
    """The kernel as BiShengIR's fusion passes leave it: the last module before it turns to HIVM. Arguments as above."""
    modules: list[str] = []

    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        result = _compile(command, soc, f"--mlir-print-ir-after={_LAST_HFUSION_PASS}")
        modules.extend(_DUMP.split(result.stderr.decode())[1:])
        if not modules:
            raise subprocess.CalledProcessError(result.returncode, list(command), result.stdout, result.stderr)
        return result

    _run_stage(stage, linalg, metadata, options, soc, run)
    # After a retry there are several; messages may follow the module's last brace.
    return modules[-1][: modules[-1].rindex("\n}") + 3]


def _run_stage(
    stage: Callable[..., bytes],
    linalg: str,
    metadata: dict[str, Any],
    options: Any,
    soc: SoC,
    run: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    """Call triton-ascend's function with `run` in place of subprocess.run, and no NPU or CANN in reach."""

    def run_and_write(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        Path(f"{command[-1]}.o").touch()  # the function reads the binary back, next to the name it gave
        return run(command, **options)

    stand_ins = {
        "subprocess": types.SimpleNamespace(run=run_and_write),
        "NPUUtils": lambda: types.SimpleNamespace(get_arch=lambda: soc.name),
        "_get_npucompiler_path": lambda: "bishengir-compile",
        "_check_bishengir_api_change": lambda: True,
        "_check_bishengir_is_regbased": lambda: False,
    }
    types.FunctionType(stage.__code__, {**stage.__globals__, **stand_ins})(linalg, metadata, options)


def _compile(command: Sequence[str], soc: SoC, *extra: str) -> subprocess.CompletedProcess[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        for name in _BACK_ENDS:
            Path(directory, name).symlink_to(shutil.which("true") or "/bin/true")
        path = f"{directory}{os.pathsep}{os.environ.get('PATH', '')}"
        return subprocess.run(
            [program(soc.compiler), *command[1:], *extra], capture_output=True, env={**os.environ, "PATH": path}
        )


def _report(kernel: str, soc: SoC, result: subprocess.CompletedProcess[bytes], hivm: str) -> BufferReport:
    diagnostics = result.stderr.decode(errors="replace")
    retries = tuple(_RETRY.findall(diagnostics))
    overflows = _OVERFLOW.findall(diagnostics)
    if result.returncode == 0:
        # The compiler for 950 retries without saying what it switched off; the failed attempts' errors remain.
        retries = retries or ("an unnamed option",) * len(overflows)
        return BufferReport(kernel, soc.name, True, _bytes_planned(hivm), soc.unified_buffer_bytes, retries, "", hivm)
    if overflows:
        required, available = (int(bits) // 8 for bits in overflows[-1])
        return BufferReport(kernel, soc.name, False, required, available, retries, diagnostics, "")
    raise subprocess.CalledProcessError(result.returncode, result.args, result.stdout, result.stderr)


def _bytes_planned(hivm: str) -> int:
    """End of the last unified-buffer allocation in planned HIVM, in bytes."""
    offsets = {name: int(value) for name, value in _OFFSET.findall(hivm)}
    end = 0
    for operands, shape, _, width in _BUFFER.findall(hivm):
        bits = prod(int(n) for n in shape.split("x")[:-1]) * int(width)
        starts = [offsets[name.strip()] for name in operands.split(",") if name.strip() in offsets]
        end = max([end, *(start + (bits + 7) // 8 for start in starts)])
    return end
