"""Compares an expression of the operator tables on the npu with the same on the CPU, in every variant."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from operator_table import Expression, Inputs

from thunder_npu import virtual_npu

VARIANTS = (("contiguous", 4), ("strided", 4), ("contiguous", 0))


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a nested result, on the CPU."""
    if isinstance(result, torch.Tensor):
        return [result.detach().cpu()]
    return [tensor for part in result for tensor in tensors(part)]


def reference(expression: Expression, dtype: torch.dtype, layout: str, n: int) -> list[torch.Tensor] | None:
    """The CPU's result; None where the CPU refuses the variant, which must not be the plain one."""
    try:
        return tensors(expression(Inputs("cpu", dtype, layout, n)))
    except (RuntimeError, NotImplementedError, IndexError):
        if layout == "contiguous" and n:
            raise
        return None


def check(name: str, expression: Expression, dtypes: tuple[torch.dtype, ...]) -> None:
    """AssertionError unless `name` runs and every dtype and variant gives what the CPU gives."""
    compared = 0
    for dtype in dtypes:
        for layout, n in VARIANTS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about deprecated spellings that are tested all the same
                expected = reference(expression, dtype, layout, n)
                if expected is None:
                    continue
                with virtual_npu.record() as calls:
                    got = tensors(expression(Inputs("npu", dtype, layout, n)))
            where = f"{name} {dtype} {layout} n={n}"
            # torch_npu takes lists of strided tensors apart, and may skip empty tensors.
            if n and not (layout == "strided" and name.startswith("aclnnForeach")):
                assert name in calls.names, f"{where} ran {sorted(set(calls.names))}"
            torch.testing.assert_close(got, expected, equal_nan=True, msg=lambda text: f"{where}: {text}")  # noqa: B023
            compared += 1
    assert compared >= 2 * len(dtypes), name
