"""What the fusion tests ask of a jitted function: its fused regions, and to run their kernels on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import thunder
import torch

import thunder_npu
from thunder_npu.executors.fusion import FusedRegion, is_region
from thunder_npu.kernels import codegen

EXECUTORS = (thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex)


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return thunder.jit(function, executors=options.pop("executors", EXECUTORS), **options)


def forward_regions(jitted: Callable[..., Any]) -> list[FusedRegion]:
    return _regions(thunder.last_traces(jitted)[-1])


def backward_regions(jitted: Callable[..., Any]) -> list[FusedRegion]:
    traces = thunder.last_backward_traces(jitted)
    return _regions(traces[-1]) if traces else []


def _regions(trace: Any) -> list[FusedRegion]:
    return [b._call_ctx[b.sym.name] for b in trace.bound_symbols if is_region(b)]


def use_kernels(jitted: Callable[..., Any]) -> int:
    """From now on the regions of `jitted` run their kernels, on CPU tensors too; how many there are."""
    regions = forward_regions(jitted) + backward_regions(jitted)
    for region in regions:
        region.reference = None
    return len(regions)


class _Interpreted:
    """`kernel[grid](…)` by triton-ascend's front end and this CPU, without BiShengIR's check and Triton's cache."""

    def __init__(self, text: str) -> None:
        self.function = _load(text)
        self.compiled: dict[Any, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        from thunder_npu.virtual_npu.triton_cpu import compile_kernel

        def run(*arguments: Any, **constants: int) -> None:
            names = [n for n in self.function.arg_names if n not in constants]
            kinds = {name: _kind(a) for name, a in zip(names, arguments, strict=True)}
            key = (*kinds.items(), *constants.items())
            if key not in self.compiled:
                self.compiled[key] = compile_kernel(self.function, kinds, constants)
            self.compiled[key].run(grid, *arguments)

        return run


_load = codegen.load
_POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int8: "*i8",
}  # fmt: skip


def _kind(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return _POINTERS[argument.dtype]
    return "i32" if abs(argument) < 2**31 else "i64"


@contextmanager
def without_bishengir() -> Iterator[None]:
    """Kernels of regions run as :class:`_Interpreted`."""
    kept: dict[str, _Interpreted] = {}
    codegen.load = lambda text: kept.setdefault(text, _Interpreted(text))
    try:
        yield
    finally:
        codegen.load = _load
