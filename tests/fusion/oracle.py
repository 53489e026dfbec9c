"""What a program's results may be: a float64 run of the same rounding steps, and how far rounding alone can move it.

:class:`Rounding` runs every ATen operation, forward and backward, in float64 and rounds its result to the dtype that
eager gives it. With `noise` each result is off by up to half an ulp of its dtype, two of float32 (each operand by two
of float32, for what a kernel computes inside): how far such runs spread is what rounding can do to this element of the
result (Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997). Nothing here knows Thunder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

UNITS = {torch.float32: 2.0}
"""Most ulps that one operation is off by: two of float32 (an exponential), half of another type, its rounding."""
RUNS = 6
MARGIN = 2.0
"""Times the widest of RUNS random runs: what six of them miss."""
# Operations whose result is one of their operands, or exact.
EXACT = {
    "where", "masked_fill", "clone", "_to_copy", "amax", "amin", "maximum", "minimum", "neg", "abs", "clamp", "copy",
    "zeros_like", "ones_like", "full_like", "new_zeros", "empty_like", "sgn", "sign", "index_select", "gather", "cat",
}  # fmt: skip


class Rounding(TorchDispatchMode):
    def __init__(self, noise: int | None = None) -> None:
        super().__init__()
        self.generator = None if noise is None else torch.Generator().manual_seed(noise)

    def off(self, value: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        if self.generator is None or not value.is_floating_point():
            return value
        return value + size * (2 * torch.rand(value.shape, generator=self.generator, dtype=torch.float64) - 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        eager = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        operands = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        returns_float = isinstance(eager, torch.Tensor) and eager.is_floating_point()
        if func.is_view or func._schema.is_mutable or not operands or not returns_float:
            return eager
        size = 2.0**-22 if name not in EXACT else 0.0

        def widen(a: Any) -> Any:
            if isinstance(a, torch.Tensor) and a.is_floating_point():
                return self.off(a.double(), a.double().abs() * size)
            return torch.float64 if isinstance(a, torch.dtype) and a.is_floating_point else a

        wide = func(*tree_map(widen, args), **tree_map(widen, kwargs))
        if name not in EXACT:
            wide = self.off(wide, ulp(wide, eager.dtype) * UNITS.get(eager.dtype, 0.5))
        return wide.to(eager.dtype)


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance to the next number of `dtype` above |value|, in float64."""
    info = torch.finfo(dtype)
    exponent = torch.floor(torch.log2(value.abs().double().clamp(min=info.tiny)))
    return torch.exp2(exponent) * info.eps


class Oracle:
    """The right results of `run()` and their bounds."""

    def __init__(self, run: Callable[[], Sequence[torch.Tensor]]) -> None:
        with Rounding():
            self.want = [t.detach() for t in run()]
        self.runs = []
        for noise in range(RUNS):
            with Rounding(noise):
                self.runs.append([t.detach().double() for t in run()])

    def is_rounding(self, i: int) -> bool:
        """Whether result i is nothing but rounding errors (a gradient that cancels), or zero."""
        want = self.want[i].double()
        return bool(want.norm() <= max((run[i] - want).norm() for run in self.runs))

    def problem(self, i: int, got: torch.Tensor) -> str | None:
        """Why `got` cannot be result i; None if it can.

        Each element lies within MARGIN times the spread of the noisy runs and two ulps; so does the whole, by its norm.
        """
        want = self.want[i]
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{tuple(got.shape)} {got.dtype}, not {tuple(want.shape)} {want.dtype}"
        a, b = got.double(), want.double()
        finite = torch.isfinite(b)
        if not torch.equal(a[~finite].nan_to_num(nan=7.0), b[~finite].nan_to_num(nan=7.0)):
            return "other infinities or NaN"
        if not torch.isfinite(a[finite]).all():
            return "infinite or NaN where it should not be"
        a, b = a[finite], b[finite]
        moved = torch.stack([run[i][finite] - b for run in self.runs]).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        if not b.numel():
            return None
        one = ulp(b, want.dtype)
        error = (a - b).abs()
        # An element's own spread, and a tenth of its tensor's: six runs may by chance leave one element where it was.
        typical = moved.abs().square().mean().sqrt()
        allowed = MARGIN * moved.abs().amax(0) + typical + 2 * one
        worst = (error / allowed).argmax()
        if error[worst] > allowed[worst]:
            off, most = ((t[worst] / one[worst]).item() for t in (error, allowed))
            return f"element {worst.item()} is off by {off:.1f} ulps, {most:.1f} allowed"
        norm, most = error.norm(), MARGIN * moved.norm(dim=1).max() + one.norm()
        return f"the whole is off by {norm:.3g}, {most:.3g} allowed" if norm > most else None
