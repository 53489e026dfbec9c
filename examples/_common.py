"""What the examples share: a model trained in eager PyTorch and through thunder-npu, compared at every step.

Weights come from configurations and a seed; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

if "npu" not in vars(torch):
    # transformers imports torch_npu wherever it finds it installed, and that import fails as a whole without CANN. None
    # in sys.modules is Python's way to say that there is no such module.
    sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]

import thunder_npu

STEPS = 3
# Not Adam: it divides by the gradient's own size, so it turns rounding noise in a gradient into a step of full length.
SGD = {"lr": 0.05, "momentum": 0.9}

# Largest difference to eager allowed, over the largest element of the tensor compared. Thunder decomposes
# normalisations and activations, so sums run in another order. In these models eager's own gradients in bfloat16 are up
# to 5.2e-2 away from those in float32, in float16 1.4e-2.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-4, torch.float16: 2**-6}

# The gradient of a bias that softmax cancels (BERT's key bias) is zero, and what is computed for it is rounding noise.
# Gradients are compared on a scale of at least this share of the model's largest one.
NOISE = 1e-3


@dataclass
class Workload:
    """A model with a batch to train it on.

    Attributes:
        name: what the example calls it.
        model: takes the batch by keyword and returns (logits, loss).
        batch: the inputs, on the CPU.
        compile: thunder.jit, thunderfx or thunder.compile with our executors, as the example's own lines spell it.
    """

    name: str
    model: nn.Module
    batch: dict[str, torch.Tensor]
    compile: Callable[[nn.Module], Callable[..., Any]]


@dataclass
class Comparison:
    """The compiled model after its training steps, and the largest difference to eager of each kind in any of them."""

    compiled: Callable[..., Any]
    differences: dict[str, float] = field(default_factory=dict)

    def check(self, kind: str, what: str, got: torch.Tensor, want: torch.Tensor, scale: float = 0.0) -> None:
        """Records max|got − want| over max|want| (or `scale`, if larger).

        Raises:
            AssertionError: shape, dtype or device differ, or the difference is beyond the dtype's TOLERANCE (or NaN).
        """
        for attribute in ("shape", "dtype", "device"):
            mine, eager = getattr(got, attribute), getattr(want, attribute)
            if mine != eager:
                raise AssertionError(f"{what}: {attribute} {mine}, eager has {eager}")
        scale = max(largest(want), scale)
        difference = largest(got.float() - want.float()) / scale if scale else largest(got)
        if not difference <= TOLERANCE[want.dtype]:
            raise AssertionError(f"{what} differs from eager by {difference:.2e}, allowed: {TOLERANCE[want.dtype]:.2e}")
        self.differences[kind] = max(difference, self.differences.get(kind, 0.0))

    def __str__(self) -> str:
        figures = ", ".join(f"{kind} {difference:.1e}" for kind, difference in self.differences.items())
        return f"largest difference to eager, relative to the largest element: {figures}"


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each position's logits (batch, sequence, vocabulary) against the next of the ids."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def largest(x: torch.Tensor) -> float:
    """max|x|, NaN if there is one; 0 for an empty tensor."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def placed(batch: dict[str, torch.Tensor], device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The batch on `device`, its floating-point tensors (masks) in `dtype`."""
    return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in batch.items()}


def train_beside_eager(
    workload: Workload, device: str = "cpu", dtype: torch.dtype = torch.float32, steps: int = STEPS
) -> Comparison:
    """Trains two copies of the model, compiled and eager, on the same batch, and compares them at every step:
    logits, loss and the gradient of each parameter.

    Raises:
        AssertionError: see `Comparison.check`; or one side has a gradient where the other has none.
    """
    modules = {side: copy.deepcopy(workload.model).to(device, dtype).train() for side in ("compiled", "eager")}
    batch = placed(workload.batch, device, dtype)
    calls: dict[str, Callable[..., Any]] = {**modules, "compiled": workload.compile(modules["compiled"])}
    optimizers = {side: torch.optim.SGD(m.parameters(), **SGD) for side, m in modules.items()}
    comparison = Comparison(calls["compiled"])
    for step in range(1, steps + 1):
        results = {side: call(**batch) for side, call in calls.items()}
        for side, (_, loss) in results.items():
            optimizers[side].zero_grad()
            loss.backward()
        for kind, got, want in zip(("logits", "loss"), results["compiled"], results["eager"], strict=True):
            comparison.check(kind, f"{kind} of step {step}", got, want)
        compare_gradients(comparison, step, modules["compiled"].named_parameters(), modules["eager"].named_parameters())
        for optimizer in optimizers.values():
            optimizer.step()
    return comparison


def compare_gradients(
    comparison: Comparison,
    step: int,
    ours: Iterable[tuple[str, nn.Parameter]],
    eager: Iterable[tuple[str, nn.Parameter]],
) -> None:
    want = {name: p.grad for name, p in eager}
    scale = NOISE * max(largest(g) for g in want.values() if g is not None)
    for name, p in ours:
        if (p.grad is None) != (want[name] is None):
            raise AssertionError(f"{name} has a gradient in {'eager' if p.grad is None else 'Thunder'} only")
        if p.grad is not None:
            comparison.check("gradients", f"gradient of {name} in step {step}", p.grad, want[name], scale)


def main(description: str | None, workloads: Callable[[], Iterable[Workload]]) -> None:
    """An example's command line: trains, prints explain()'s table, and ends with "equal to eager" or an exception."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or npu (with CANN, or on the virtual NPU)")
    parser.add_argument("--dtype", default="float32", choices=[str(t).removeprefix("torch.") for t in TOLERANCE])
    arguments = parser.parse_args()
    for workload in workloads():
        comparison = train_beside_eager(workload, arguments.device, getattr(torch, arguments.dtype))
        print(f"{workload.name}: {STEPS} training steps in {arguments.dtype} on {arguments.device}")
        print(thunder_npu.explain(comparison.compiled))
        print(comparison)
    print("equal to eager")
