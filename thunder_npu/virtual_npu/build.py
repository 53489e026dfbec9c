"""Compiles the stand-in CANN libraries with the machine's C++ compiler, once per torch, torch_npu, source and compiler.

The result is one library with everything in it and seven thin ones that depend on it under the names by which torch_npu
asks for CANN. Symbols that the wheel mentions and no source implements get a stub that fails with its name.
This module finds torch and torch_npu by their metadata; it never imports them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thunder_npu import cache

SOURCES = Path(__file__).parent / "cann"
CORE = "libvirtual_cann.so"
CANN_NAMES = ("hccl", "ascendcl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "opapi")


def libraries() -> Path:
    """The directory of the built libraries, building them first if need be (about a minute on two cores).

    Raises:
        RuntimeError: no compiler, a compiler error, torch and torch_npu that do not fit, or a cache that cannot be used
            (CacheError); the message names the remedy.
    """
    torch, torch_npu = _package("torch"), _package("torch_npu")
    check_versions()
    compiler = _compiler()
    target = cache.directory("virtual_npu") / _key(compiler, (Path(__file__), *sorted(SOURCES.iterdir())))
    if _complete(target):
        return target
    with cache.locked(target):  # a second process waits here, and then finds the first one's result
        if not _complete(target):
            scratch = Path(tempfile.mkdtemp(dir=target.parent))
            try:
                _build(scratch, compiler, torch, torch_npu)
                shutil.rmtree(target, ignore_errors=True)  # damaged
                scratch.rename(target)  # complete or not there at all
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def _complete(target: Path) -> bool:
    return all(cache.intact(target / name) for name in (CORE, *(f"lib{name}.so" for name in CANN_NAMES)))


def check_versions() -> None:
    """RuntimeError unless torch and torch_npu have the same major.minor version."""
    torch, torch_npu = importlib.metadata.version("torch"), importlib.metadata.version("torch_npu")
    if torch.split(".")[:2] != torch_npu.split(".")[:2]:
        raise RuntimeError(
            f"torch_npu {torch_npu} does not fit torch {torch}: both must have the same major.minor version; "
            f"install torch_npu=={'.'.join(torch.split('.')[:2])}.* or torch=={'.'.join(torch_npu.split('.')[:2])}.*"
        )


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the virtual NPU needs {name}, which is not installed: pip install {name}")
    return Path(spec.origin).parent


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "c++", "clang++"]:
        if path := shutil.which(name):
            return path
    raise RuntimeError(
        f"the virtual NPU is built with a C++17 compiler, and there is no {wanted or 'g++, c++ or clang++'}: "
        "install g++ (for example apt-get install g++), or name a compiler in the environment variable CXX"
    )


def _flags() -> tuple[str, ...]:
    major, minor = map(int, importlib.metadata.version("torch").split(".")[:2])
    standard = 20 if (major, minor) >= (2, 12) else 17  # what torch's headers ask for
    return (f"-std=c++{standard}", "-O1", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-w")


def _key(compiler: str, sources: Iterable[Path]) -> str:
    """Names what is made of these sources by this compiler against the installed torch and torch_npu."""
    path = os.path.realpath(compiler)
    binary = os.stat(path)
    digest = hashlib.sha256(repr((_flags(), path, binary.st_size, binary.st_mtime_ns, str(_package("torch")))).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    versions = (importlib.metadata.version(name) for name in ("torch", "torch_npu"))
    return "-".join((*versions, digest.hexdigest()[:16]))


def _build(out: Path, compiler: str, torch: Path, torch_npu: Path) -> None:
    started = time.monotonic()
    units = sorted(SOURCES.glob("*.cpp"))
    done = 0

    def progress(text: str, end: str = "") -> None:
        if sys.stderr.isatty():
            print(f"\r\033[Kvirtual NPU: {text}", end=end, file=sys.stderr, flush=True)
        elif end or not done:
            print(f"virtual NPU: {text}", file=sys.stderr, flush=True)

    acl = torch_npu / "include" / "third_party" / "acl" / "inc"
    includes = [f"-I{torch / 'include'}", f"-I{acl}", f"-I{acl.parent.parent}"]
    headers = sorted(SOURCES.glob("*.h"))
    kept = cache.directory("virtual_npu", "objects")  # a change in one source compiles only that one again

    def compile_unit(unit: Path) -> Path:
        nonlocal done
        result = kept / f"{unit.stem}-{_key(compiler, (unit, *headers))}.o"
        if not cache.intact(result):
            fresh = out / f"{unit.stem}.o"
            _run([compiler, *_flags(), *includes, "-c", str(unit), "-o", str(fresh)])
            fresh.rename(result)
            cache.seal(result)
        done += 1
        progress(f"compiled {done} of {len(units)} files")
        return result

    progress(f"first use, compiling {len(units)} files (about a minute) into {out.parent}")
    largest_first = sorted(units, key=lambda unit: -unit.stat().st_size)
    with ThreadPoolExecutor(max_workers=min(len(units), os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compile_unit, largest_first))
    stubs = out / "stubs.c"
    stubs.write_text(_stubs(torch_npu, objects), encoding="ascii")
    _run([compiler, "-x", "c", "-O1", "-fPIC", "-w", "-c", str(stubs), "-o", str(out / "stubs.o")])
    linked = [str(path) for path in (*objects, out / "stubs.o")]
    torch_libs = torch / "lib"
    _run([compiler, "-shared", "-o", str(out / CORE), f"-Wl,-soname,{CORE}", *linked, f"-L{torch_libs}",
          "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_libs}", "-Wl,--allow-shlib-undefined"])  # fmt: skip
    for name in CANN_NAMES:
        _run([compiler, "-shared", "-o", str(out / f"lib{name}.so"), f"-Wl,-soname,lib{name}.so", "-Wl,--no-as-needed",
              f"-L{out}", f"-l:{CORE}", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"])  # fmt: skip
    for path in (out / "stubs.o", stubs):
        path.unlink()
    for library in list(out.iterdir()):
        cache.seal(library)
    progress(f"built in {time.monotonic() - started:.0f} s", end="\n")


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        raise RuntimeError(
            f"building the virtual NPU failed (it needs a C++17 compiler and the headers of torch and torch_npu):\n"
            f"{' '.join(command)}\n{result.stderr[-4000:]}"
        )
    return result.stdout


def _symbols(path: Path, *options: str) -> set[str]:
    dynamic = ["-D"] if path.suffix == ".so" else ["-g"]
    lines = _run(["nm", *dynamic, *options, str(path)]).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.strip()}


def _stubs(torch_npu: Path, objects: Iterable[Path]) -> str:
    """C source with a failing function for every CANN symbol that the wheel links or looks up and nobody defines.

    A missing aclnn symbol would be worse than a failing one: torch_npu then falls back to a graph-mode operator whose
    failure is asynchronous.
    """
    have = set().union(*(_symbols(path, "--defined-only") for path in objects))
    wheel = [*torch_npu.glob("_C*.so"), *torch_npu.glob("lib/*.so")]
    linked = set().union(*(_symbols(path, "--undefined-only") for path in wheel))
    linked = {name for name in linked if re.match(r"(acl[A-Za-z]|Hccl|Hcom|rt[A-Z]|Msprof)", name)} - have
    binary = (torch_npu / "lib" / "libtorch_npu.so").read_bytes()
    looked_up = re.findall(rb"(aclnn[A-Z][A-Za-z0-9]*)GetWorkspaceSize\0", binary)
    operators = {name.decode() for name in looked_up} - have
    lines = ["int vnpu_not_emulated(const char*);", '#define EXPORT __attribute__((visibility("default")))']
    for name in sorted(linked):
        result = "0" if name.startswith("Msprof") else f'vnpu_not_emulated("{name}")'  # profiling hooks are void
        lines.append(f"EXPORT long {name}(void) {{ return {result}; }}")
    for name in sorted(operators):
        for suffix in ("GetWorkspaceSize", ""):
            lines.append(f'EXPORT int {name}{suffix}(void) {{ return vnpu_not_emulated("{name}"); }}')
    return "\n".join(lines) + "\n"
