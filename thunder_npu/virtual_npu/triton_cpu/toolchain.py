"""The programs that turn a Triton-Ascend kernel into code for this CPU, and the errors when one is missing.

Needs the packages triton-ascend (which owns the module `triton`) and ascendnpu-ir, and a C compiler. This module never
writes into site-packages and never needs CANN or an NPU.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

from thunder_npu import cache

__all__ = ["ToolchainError", "c_compiler", "check", "fingerprint", "host_cpu", "link", "program"]

_SUPPORTED_TRITON = "3.2."
_HERE = Path(__file__).parent


class ToolchainError(RuntimeError):
    """Something that the CPU execution of Triton-Ascend kernels needs is missing; the message says what to install."""


@functools.cache
def check() -> None:
    """Make sure that `triton` is triton-ascend and that BiShengIR is installed.

    Raises:
        ToolchainError: naming what is missing or in the way, and the remedy.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolchainError("no module named triton: run `pip install triton-ascend==3.2.0`")
    root = Path(spec.origin).parent
    if not (root / "backends" / "ascend").is_dir():
        raise ToolchainError(
            f"the module `triton` in {root} is not triton-ascend: the package `triton` was installed over it. "
            "Run `pip uninstall -y triton triton-ascend && pip install triton-ascend==3.2.0`"
        )
    version = importlib.metadata.version("triton-ascend")
    if not version.startswith(_SUPPORTED_TRITON):
        raise ToolchainError(f"triton-ascend {version} is not supported: run `pip install triton-ascend==3.2.0`")
    if importlib.util.find_spec("ascendnpuir") is None:
        raise ToolchainError("BiShengIR is missing: run `pip install ascendnpu-ir==1.2.0`")


@functools.cache
def program(name: str) -> str:
    """Path of a program of ascendnpu-ir ("bishengir-compile", "bishengir-opt-a5", …), ready to execute.

    Some installers drop the executable bit; a private copy then has it, and site-packages stays as it is.

    Raises:
        ToolchainError: the package, or this program of it, is missing.
    """
    check()
    path = _binaries() / name
    if not path.is_file():
        raise ToolchainError(f"ascendnpu-ir has no {path}: run `pip install --force-reinstall ascendnpu-ir==1.2.0`")

    if os.access(path, os.X_OK):
        return str(path)
    return str(_executable_copy(path))


def _binaries() -> Path:
    return Path(str(importlib.metadata.distribution("ascendnpu-ir").locate_file("ascendnpuir")), "bin")


def _executable_copy(path: Path) -> Path:
    """A copy of `path` with the executable bit, in the cache, made once per size and time of the original."""
    status = path.stat()
    target = cache.directory("bin") / f"{path.name}-{status.st_size}-{int(status.st_mtime)}"
    if not os.access(target, os.X_OK) or target.stat().st_size != status.st_size:
        cache.write(target, path.read_bytes(), mode=stat.S_IRWXU)
    return target


@functools.cache
def c_compiler() -> tuple[str, ...]:
    """The C compiler's command: $CC if set, else the first of cc, gcc, clang on PATH.

    Raises:
        ToolchainError: there is none.
    """
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return tuple(words)
    raise ToolchainError("no C compiler (looked for $CC, cc, gcc, clang): install one, e.g. `apt-get install gcc`")


def link(output: Path, *inputs: Path, options: tuple[str, ...] = ()) -> None:
    """Compile and link C sources and object files into the shared library `output`."""
    command = [*c_compiler(), "-shared", "-fPIC", *options, *map(str, inputs), "-o", str(output), "-lm", "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        raise ToolchainError(f"the C compiler failed: {shlex.join(command)}\n{result.stderr}")


@functools.cache
def host_cpu() -> tuple[str, str]:
    """(LLVM target triple, LLVM processor name) of this machine.

    The processor is the x86-64 micro-architecture level (psABI), not the exact model: compiled kernels are then shared
    between machines of one level that use one Triton cache.

    Raises:
        ToolchainError: the machine is neither x86-64 nor AArch64.
    """
    machine = platform.machine()
    if machine == "aarch64":
        return "aarch64-unknown-linux-gnu", "generic"
    if machine != "x86_64":
        raise ToolchainError(f"Triton-Ascend kernels run on x86-64 and AArch64 hosts, not on {machine}")
    flags = set(_cpu_flags())
    levels = {  # the flags, as /proc/cpuinfo spells them, that tell a level from the one below
        "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
        "x86-64-v2": {"cx16", "popcnt", "sse4_2", "ssse3"},
    }
    wanted: set[str] = set()
    level = "x86-64"
    for name, extra in reversed(levels.items()):
        wanted |= extra
        if not wanted <= flags:
            break
        level = name
    return "x86_64-unknown-linux-gnu", level


def _cpu_flags() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return line.split(":", 1)[1].split()
    return []


@functools.cache
def fingerprint() -> str:
    """Hash of all that decides what a kernel compiles to besides Triton: these sources, BiShengIR, the CPU."""
    check()
    digest = hashlib.sha256()
    for path in sorted([*_HERE.glob("*.py"), *_HERE.glob("*.c")]):
        digest.update(path.read_bytes())
    digest.update(importlib.metadata.version("ascendnpu-ir").encode())
    digest.update(repr(host_cpu()).encode())
    return digest.hexdigest()
