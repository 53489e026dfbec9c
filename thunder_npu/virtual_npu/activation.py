"""`enable`: makes the real torch_npu, in this process, run on the virtual NPU.

The stand-in libraries are loaded under CANN's names before torch_npu is imported, so that its dependencies resolve to
them. Child processes find them through LD_LIBRARY_PATH and the VIRTUAL_NPU_* variables that are set here.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import glob
import hashlib
import importlib.metadata
import os
import sys

from thunder_npu.virtual_npu import build, library
from thunder_npu.virtual_npu.soc import DEFAULT_SOC, SoC, soc_named

DEVICE_NODES = "/dev/davinci[0-9]*"


def enable(
    devices: int = 1,
    soc: str = DEFAULT_SOC,
    *,
    memory_limit: int | None = None,
    log: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> None:
    """Give this process `devices` virtual NPUs; then `torch.randn(4, device="npu")` works.

    Call it before anything imports torch_npu. torch may be imported already, with TORCH_DEVICE_BACKEND_AUTOLOAD=0.
    The first use compiles the libraries, about a minute. A second call with the same arguments does nothing.

    Args:
        devices: number of devices, 1 to 64.
        soc: name of the SoC, one of `soc.SOCS`; sets its name, core counts, memory, and the target of Triton kernels.
        memory_limit: bytes of memory of each device; None: what the SoC has.
        log: file that gets a line for each operator, copy and allocation; "-" for stderr.
        force: enable it even on a machine with a real NPU.

    Raises:
        ValueError: a wrong `devices`, `soc` or `memory_limit`.
        RuntimeError: there is a real NPU, torch_npu was imported before, there is no compiler, torch and torch_npu do
            not fit, or `triton` was installed over triton-ascend.
    """
    chip = soc_named(soc)
    if not 1 <= devices <= 64:
        raise ValueError(f"devices must be 1 to 64, not {devices}")
    if memory_limit is not None and memory_limit <= 0:
        raise ValueError(f"memory_limit must be a positive number of bytes, not {memory_limit}")
    settings = {
        "VIRTUAL_NPU_DEVICES": str(devices),
        "VIRTUAL_NPU_SOC": chip.name,
        "VIRTUAL_NPU_CUBE_CORES": str(chip.cube_cores),
        "VIRTUAL_NPU_VECTOR_CORES": str(chip.vector_cores),
        "VIRTUAL_NPU_MEMORY": str(memory_limit or chip.hbm_bytes),
        "VIRTUAL_NPU_LOG": "" if log is None else "-" if str(log) == "-" else os.path.abspath(log),
    }
    if library.loaded() is not None:
        if changed := [name for name, value in settings.items() if os.environ.get(name) != value]:
            raise RuntimeError(f"the virtual NPU is enabled already, with other values of {', '.join(changed)}")
        return
    _refuse_beside_real_npu(force)
    _check_triton()
    directory = build.libraries()
    if "torch_npu" in sys.modules:
        if os.environ.get("VIRTUAL_NPU_LIBRARY") != str(directory / build.CORE):
            raise RuntimeError(
                "torch_npu is imported already: call thunder_npu.virtual_npu.enable() first thing in the program, or "
                "start it with python -m thunder_npu.virtual_npu"
            )
    else:
        # A child process of an enabled one has torch_npu from `import torch` and its settings from its parent.
        os.environ.update(settings)
        os.environ["VIRTUAL_NPU_LIBRARY"] = str(directory / build.CORE)
        paths = [str(directory), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
        os.environ["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(paths))
        # With a task queue, an operator's error surfaces on a later call, from another thread.
        os.environ.setdefault("TASK_QUEUE_ENABLE", "0")
        _import_torch_alone()
    handle = ctypes.CDLL(str(directory / build.CORE))
    for name in build.CANN_NAMES:
        ctypes.CDLL(str(directory / f"lib{name}.so"))
    with contextlib.redirect_stdout(sys.stderr):  # it prints that ASCEND_HOME_PATH is not set
        import torch_npu  # noqa: F401
    library.attach(handle)
    _install_triton_driver(chip)


def _import_torch_alone() -> None:
    """Import torch without the automatic import of torch_npu, which would look for CANN before it is loaded."""
    before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        import torch  # noqa: F401
    finally:
        if before is None:
            del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before


def _refuse_beside_real_npu(force: bool) -> None:
    if not force and (nodes := glob.glob(DEVICE_NODES)):
        raise RuntimeError(
            f"this machine has a real NPU ({nodes[0]}): run the program without the virtual one, "
            "or say so with enable(force=True), --force on the command line"
        )


def _check_triton() -> None:
    """RuntimeError if the files of triton-ascend's package `triton` are not the ones that triton-ascend installed."""
    try:
        ascend = importlib.metadata.distribution("triton-ascend")
    except importlib.metadata.PackageNotFoundError:
        return
    init = next(file for file in ascend.files or () if str(file) == "triton/__init__.py")
    digest = base64.urlsafe_b64encode(hashlib.sha256(init.read_binary()).digest()).rstrip(b"=").decode()
    if init.hash is None or digest == init.hash.value:
        return
    raise RuntimeError(
        f"the package `triton` of triton-ascend {ascend.version} has been overwritten, most likely by "
        "`pip install triton` or by a torch that asks for it: "
        f"pip uninstall -y triton triton-ascend && pip install --no-deps triton-ascend=={ascend.version}"
    )


def _install_triton_driver(chip: SoC) -> None:
    """Make the CPU driver Triton's active one. torch_npu has imported Triton by now: this adds no import of weight."""
    try:
        importlib.metadata.version("triton-ascend")
    except importlib.metadata.PackageNotFoundError:
        return
    from thunder_npu.virtual_npu import triton_cpu

    triton_cpu.install(soc=chip.name)
