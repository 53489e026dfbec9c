"""Compile one Triton-Ascend kernel for a chosen SoC without a driver, a launch or a cache: for proofs and tests.

Unlike the JIT, which refuses a kernel that overflows the unified buffer, this reports it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ..soc import DEFAULT_SOC, SoC, soc_named
from .bishengir import BufferReport, after_hfusion, plan_buffers
from .driver import front_end
from .execution import Arguments, Library
from .lowering import build_library

from triton._C.libtriton import ir  # isort: skip  (after the check that driver makes of the installed triton)
from triton.compiler import ASTSource  # isort: skip
from triton.compiler.errors import MLIRCompilationError  # isort: skip

__all__ = ["Kernel", "compile_kernel"]

T = TypeVar("T")


class Kernel:
    """A kernel lowered to linalg. BiShengIR and the CPU build run when first asked for."""

    def __init__(
        self,
        name: str,
        linalg: str,
        signature: dict[str, str],
        soc: SoC,
        metadata: dict[str, Any],
        options: Any,
        stage: str,
    ) -> None:
        self.name = name
        self.linalg = linalg
        self.signature = signature
        self.soc = soc
        self._metadata = metadata
        self._options = options
        self._stage = stage

    @functools.cached_property
    def report(self) -> BufferReport:
        """BiShengIR's memory plan.

        Raises:
            MLIRCompilationError: BiShengIR failed for another reason than the unified buffer's size.
        """
        return self._bishengir(plan_buffers)

    @functools.cached_property
    def hfusion(self) -> str:
        """The module after BiShengIR's fusion passes, the last form that can still run on the CPU.

        Raises:
            MLIRCompilationError: BiShengIR failed before.
        """
        return self._bishengir(after_hfusion)

    def _bishengir(self, run: Callable[..., T]) -> T:
        stage = front_end(self.soc).binary_stage(self._options)
        try:
            return run(stage, self.linalg, dict(self._metadata), self._options, self.soc)
        except Exception as error:
            raise _as_triton_reports("ConvertLinalgRToBinary", error) from error

    @functools.cached_property
    def _library(self) -> Library:
        return Library(build_library(self.hfusion if self._stage == "hfusion" else self.linalg))

    def run(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Execute the kernel on the CPU and wait for it, whether or not it fits the unified buffer.

        Args:
            grid: one to three program counts.
            arguments: the run-time arguments, in the order of the kernel's parameters, constants left out. Pointers
                are tensors in host memory, addresses or None.

        Raises:
            TypeError: a wrong number of arguments.
            UnsupportedOperationError: the kernel has no lowering to the CPU.
            OutOfBoundsStoreError: the kernel stored outside the storage of an argument.
        """
        if len(arguments) != len(self.signature):
            raise TypeError(f"{len(arguments)} arguments for the {len(self.signature)} of {list(self.signature)}")
        x, y, z = (*grid, 1, 1)[:3]
        self._library.launch(self.name, (x, y, z), Arguments(self.signature), arguments)


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    soc: str = DEFAULT_SOC,
    options: Mapping[str, Any] | None = None,
    divisible_by_16: Sequence[str] = (),
    stage: Literal["linalg", "hfusion"] = "linalg",
) -> Kernel:
    """Lower a `@triton.jit` function to linalg for `soc`.

    Args:
        fn: the function, with or without triton.autotune / triton.heuristics around it.
        signature: Triton's type of each run-time argument ("*fp32", "i32", …), by parameter name.
        constants: values of the constexpr parameters, of pointers that are None, and of integers specialised to 1.
        soc: what to compile for; a key of `SOCS`.
        options: backend options (multibuffer, …).
        divisible_by_16: names of arguments known to be multiples of 16, as the JIT finds out from their values.
        stage: what `run` executes: triton-ascend's linalg, or what BiShengIR's fusion passes make of it (not on a 950,
            whose compiler has other passes).

    Raises:
        ValueError: unknown SoC or stage, or a parameter that is neither in `signature` nor in `constants`, or in both.
        MLIRCompilationError: the front end cannot lower the kernel.
    """
    while not hasattr(fn, "arg_names") or not hasattr(fn, "params"):
        fn = fn.fn
    chosen = soc_named(soc)
    if stage == "hfusion" and chosen.a5:
        raise ValueError(f"stage 'hfusion' does not exist for {chosen.name}")
    given = [*signature, *constants]
    if sorted(given) != sorted(fn.arg_names):
        raise ValueError(f"{fn.__name__} takes {fn.arg_names}; signature and constants name {given}")
    backend = front_end(chosen)
    ordered = {name: signature[name] for name in fn.arg_names if name in signature}
    attributes = backend.get_attrs_descriptor((), ())
    attributes.arg_properties["tt.divisibility"] = [fn.arg_names.index(name) for name in divisible_by_16]
    source = ASTSource(fn=fn, signature=ordered, constants=dict(constants), attrs=attributes)
    parsed = backend.parse_options(dict(options or {}))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(parsed, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"hash": source.hash(), "target": backend.target, **parsed.__dict__}
    try:
        linalg = stages["ttadapter"](stages["ttir"](module, metadata), metadata)
    except Exception as error:
        raise _as_triton_reports("ConvertTritonIRToLinalgIR", error) from error
    return Kernel(fn.__name__, linalg, ordered, chosen, metadata, parsed, stage)


def _as_triton_reports(stage: str, error: Exception) -> MLIRCompilationError:
    """The error that triton.compile makes of a stage's failure."""
    stderr = getattr(error, "stderr", None)
    return MLIRCompilationError(stage, stderr.decode(errors="replace") if stderr else str(error))
