"""Runs a kernel on tensors: finds the device's target, plans, launches, and names the kernel when something fails.

Triton is imported on the first launch, not before: it may be absent. No path here falls back to another implementation.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .layout import Layout, row_layout
from .plan import Plan, Target, ascend_target, plan

__all__ = ["KernelCompileError", "launch", "target_of"]

# How the kernels compute exp; constexpr values of the Triton kernels.
NATIVE, EXP2, EXP2_PRECISE = 0, 1, 2
# On CUDA, fewer neighbouring rows than this make no tile; see row_layout.
CUDA_NARROW = 8


class KernelCompileError(RuntimeError):
    """A kernel could not be compiled or loaded; names the kernel, shape, dtypes, device, plan and reason."""


def target_of(device: torch.device) -> Target:
    """The plan target of a tensor's device: cuda, npu, or cpu while the virtual NPU's Triton driver is active.

    Raises:
        RuntimeError: Triton has no driver for this device.
    """
    if device.type == "cuda":
        return _cuda_target(torch.cuda.current_device() if device.index is None else device.index)
    from triton.runtime import driver

    active = driver.active.get_current_target()
    if active.backend != "npu":
        raise RuntimeError(
            f"no Triton kernel runs on {device}: the active Triton driver is for {active.backend!r}; "
            "use npu or cuda tensors, or install the virtual NPU's driver"
        )
    properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
    return _ascend_target(active.arch, properties["num_vectorcore"])


@functools.cache
def _cuda_target(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    return Target("cuda", properties.name, properties.multi_processor_count)


_ascend_target = functools.cache(ascend_target)


def launch(kernel: str, inputs: Sequence[torch.Tensor], output: torch.Tensor, dim: int) -> None:
    """Run `kernel` (a key of plan.LIVE) over dimension `dim` of tensors of one shape, none of them empty.

    Raises:
        KernelCompileError: the kernel does not compile for the device.
        Exception: whatever the launch itself raises, with a note that names the kernel.
    """
    tensors = (*inputs, output)
    prepared = _prepare(
        kernel,
        tuple(output.shape),
        dim,
        tuple((t.stride(), t.dtype) for t in tensors),
        all(t.data_ptr() % 16 == 0 for t in tensors),
        target_of(output.device),
    )
    if prepared is None:
        # Five or more axes that no strides merge: one launch per index of the shortest, which leaves the rest simpler.
        sizes = [(size, i) for i, size in enumerate(output.shape) if i != dim and size > 1 and output.stride(i) != 1]
        _, axis = min(sizes)
        for i in range(output.shape[axis]):
            slices = [t.select(axis, i) for t in inputs]
            launch(kernel, slices, output.select(axis, i), dim - (axis < dim))
        return
    try:
        with _device(output.device):
            prepared.function[(prepared.plan.grid,)](*tensors, *prepared.numbers, **prepared.keywords)
    except Exception as error:
        dtypes = ", ".join(str(t.dtype).removeprefix("torch.") for t in tensors)
        what = f"{kernel} over dim {dim} of {tuple(output.shape)} ({dtypes})"
        rename(error, what, target_of(output.device), prepared.plan)
        raise


@dataclass(frozen=True)
class Prepared:
    """All of a launch but the tensors."""

    function: Any
    plan: Plan
    numbers: list[int]
    keywords: dict[str, Any]


@functools.lru_cache(maxsize=4096)
def _prepare(
    kernel: str,
    shape: tuple[int, ...],
    dim: int,
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...],
    aligned: bool,
    target: Target,
) -> Prepared | None:
    """Layout, plan and arguments for tensors of these strides and dtypes; None where a launch has too many axes."""
    cuda = target.kind == "cuda"
    layout = row_layout(shape, dim, [stride for stride, _ in tensors], CUDA_NARROW if cuda else 1)
    if layout is None:
        return None
    *loads, store = [dtype.itemsize for _, dtype in tensors]
    chosen = plan(kernel, layout, loads, [store], target, aligned=aligned)
    exponential = NATIVE if not cuda else EXP2_PRECISE if store == 4 else EXP2
    function, numbers, keywords = launch_arguments(kernel, chosen, layout, exponential)
    if cuda:
        keywords["num_warps"] = chosen.num_warps
        if chosen.registers:
            keywords["maxnreg"] = chosen.registers
    return Prepared(function, chosen, numbers, keywords)


def launch_arguments(
    kernel: str, chosen: Plan, layout: Layout, exponential: int
) -> tuple[Any, list[int], dict[str, Any]]:
    """The Triton function of a plan, its run-time arguments after the pointers, and its constexpr arguments.

    `exponential`: NATIVE, EXP2 or EXP2_PRECISE.
    """
    from . import tile_kernels, vector_kernels

    backward = kernel.endswith("backward")
    constants: dict[str, Any] = {"LOG": kernel.startswith("log"), "EXP": exponential}
    if not backward:
        constants["SAFE"] = kernel == "safe_softmax"
    if chosen.kernel == "tile":
        function = tile_kernels.softmax_backward_tiles if backward else tile_kernels.softmax_tiles
        numbers = [chosen.tiles, layout.rows, layout.width, layout.outer[1], layout.outer[2]]
        for strides in layout.tensors:
            numbers += [*strides.outer, strides.row, strides.column]
        constants.update(
            ROWS=chosen.rows,
            BLOCK=chosen.block,
            AXIS=layout.axis,
            ONE_PASS=chosen.one_pass,
            MASKED=chosen.masked,
            OUTER=layout.outer_count > 1,
        )
        for name, i in (("G_ACCESS", 0), ("Y_ACCESS", 1)) if backward else (("X_ACCESS", 0),):
            constants[name] = layout.access(i, chosen.rows)
        return function, numbers, constants
    constants["VECTOR"] = chosen.vector
    if chosen.kernel == "narrow":
        function = vector_kernels.softmax_backward_narrow if backward else vector_kernels.softmax_narrow
        constants.update(WIDTH=layout.width, ROWS=chosen.rows, BLOCK=chosen.block)
        return function, [layout.rows], constants
    if chosen.kernel == "ragged":
        function = vector_kernels.softmax_backward_ragged if backward else vector_kernels.softmax_ragged
        constants.update(ROWS=chosen.rows, BLOCK=chosen.block)
    else:
        function = vector_kernels.softmax_backward_wide if backward else vector_kernels.softmax_wide
        constants.update(KEEP=chosen.keep, VECTORS=chosen.rows, LANES=chosen.block)
    return function, [layout.rows, layout.width], constants


def _device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    return getattr(torch, device.type).device(device)


def rename(error: Exception, kernel: str, target: Target, plan: Plan) -> None:
    """Name `kernel` in an error that its launch raised, and which the caller is about to raise again.

    An error of the launch itself stays what it is and gets a note (on Python 3.10, which has no notes, a line more in
    its message).

    Raises:
        KernelCompileError: in the place of an error of Triton's compiler, or of its loader, which knows the limits of
            the device.
    """
    where = f"for {target.name}, with {plan}"
    if _in_compiler(error):
        raise KernelCompileError(f"{kernel} did not compile {where}: {error}") from error
    note = f"in a launch of {kernel} {where}"
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def _in_compiler(error: Exception) -> bool:
    """Whether an error came out of triton.compiler, where kernels are compiled and loaded.

    The place tells, not the type: passes, back ends and external compilers raise RuntimeError and
    subprocess.CalledProcessError there, and so does a launch outside of it.
    """
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").startswith("triton.compiler") for frame in frames)
