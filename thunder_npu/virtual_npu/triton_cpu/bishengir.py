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

__all__ = ["BufferReport", "UnifiedBufferRetryWarning", "plan_buffers"]

_BACK_ENDS = ("hivmc", "hivmc-a5")
_RETRY = re.compile(r"\[NOTE\] Ub overflow detected; automatically set (\S+)")
_OVERFLOW = re.compile(r"ub overflow, requires (\d+) bits while (\d+) bits available", re.IGNORECASE)
_BUFFER = re.compile(
    r"hivm\.hir\.pointer_cast\(([^)]*)\)[^:\n]*: memref<((?:\d+x)*)([a-z]+)(\d+)[^\n]*#hivm\.address_space<ub>>"
)
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
        report, result = _compile(command, metadata["kernel_name"], soc)
        reports.append(report)
        # The stage reads the binary back, next to the name it gave.
        Path(f"{command[-1]}.o").touch()
        return result

    stand_ins = {
        "subprocess": types.SimpleNamespace(run=run),
        "NPUUtils": lambda: types.SimpleNamespace(get_arch=lambda: soc.name),
        "_get_npucompiler_path": lambda: "bishengir-compile",
        "_check_bishengir_api_change": lambda: True,
        "_check_bishengir_is_regbased": lambda: False,
    }
    types.FunctionType(stage.__code__, {**stage.__globals__, **stand_ins})(linalg, metadata, options)
    return reports[0]


def _compile(command: Sequence[str], kernel: str, soc: SoC) -> tuple[BufferReport, subprocess.CompletedProcess[bytes]]:
    with tempfile.TemporaryDirectory() as directory:
        for name in _BACK_ENDS:
            Path(directory, name).symlink_to(shutil.which("true") or "/bin/true")
        result = subprocess.run(
            [program(soc.compiler), *command[1:], f"--save-temps={directory}"],
            capture_output=True,
            env={**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ.get('PATH', '')}"},
        )
        diagnostics = result.stderr.decode(errors="replace")
        hivm = Path(directory, "module.hivm.opt.mlir").read_text() if result.returncode == 0 else ""
    retries = tuple(_RETRY.findall(diagnostics))
    overflows = _OVERFLOW.findall(diagnostics)
    if result.returncode == 0:
        # The compiler for 950 retries without saying what it switched off; the failed attempts' errors remain.
        retries = retries or ("an unnamed option",) * len(overflows)
        report = BufferReport(kernel, soc.name, True, _bytes_planned(hivm), soc.unified_buffer_bytes, retries, "", hivm)
    elif overflows:
        required, available = (int(bits) // 8 for bits in overflows[-1])
        report = BufferReport(kernel, soc.name, False, required, available, retries, diagnostics, "")
    else:
        raise subprocess.CalledProcessError(result.returncode, list(command), result.stdout, result.stderr)
    # Triton's stage goes on as if the binary had been written; a refusal is the caller's to raise.
    return report, subprocess.CompletedProcess(list(command), 0, result.stdout, result.stderr)


def _bytes_planned(hivm: str) -> int:
    """End of the last unified-buffer allocation in planned HIVM, in bytes."""
    offsets = {name: int(value) for name, value in _OFFSET.findall(hivm)}
    end = 0
    for operands, shape, _, width in _BUFFER.findall(hivm):
        bits = prod(int(n) for n in shape.split("x")[:-1]) * int(width)
        starts = [offsets[name.strip()] for name in operands.split(",") if name.strip() in offsets]
        end = max([end, *(start + (bits + 7) // 8 for start in starts)])
    return end
