"""Random regions: generated expressions around softmaxes, over random shapes, dtypes, broadcasts and strides.

    python -m tests.fusion.random_regions --count 2000 --seed 0

runs each as a fused kernel on the Ascend-lowered CPU path, forward and backward, and compares values and gradients with
a float64 run of the same rounding steps (oracle.py). The same program in words is printed for a failure.
test_regions.py runs a sample.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.fusion import regions
from tests.fusion.oracle import Oracle

WIDTHS = (2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 37, 64, 100)
LENGTHS = (1, 2, 3, 4, 5)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Case:
    """`program` is a list of (what, function, operands); values 0 … are `tensors`, then each line's result."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensors: list[torch.Tensor]
    program: list[tuple[str, Callable[..., torch.Tensor], tuple[int, ...]]] = field(default_factory=list)
    outputs: tuple[int, ...] = ()

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The program as a Python function, one operation a line."""
        count = len(self.tensors)
        names = {f"f{i}": function for i, (_, function, _) in enumerate(self.program)}
        lines = [f"def case({', '.join(f'v{i}' for i in range(count))}):"]
        for i, (_, _, operands) in enumerate(self.program):
            lines.append(f"    v{count + i} = f{i}({', '.join(f'v{o}' for o in operands)})")
        lines.append(f"    return {', '.join(f'v{o}' for o in self.outputs)},")
        exec("\n".join(lines), names)
        return names["case"]

    def __str__(self) -> str:
        inputs = [f"  v{i} = {tuple(t.shape)} {t.dtype} strides {t.stride()}" for i, t in enumerate(self.tensors)]
        first = len(self.tensors)
        lines = [f"  v{first + i} = {what}{operands}" for i, (what, _, operands) in enumerate(self.program)]
        return "\n".join([*inputs, *lines, f"  return {self.outputs}"])


def in_half(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of KINKED in a half type: no gradient flows where rounding decides to which side it jumps."""
    return lambda x, *others: function(x, *others).detach() + 0.5 * x


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp of -abs": lambda x: torch.exp(-torch.abs(x)),
    "log of 1+abs": lambda x: torch.log(1.0 + torch.abs(x)),
    "rsqrt of 1+square": lambda x: torch.rsqrt(1.0 + x * x),
    "reciprocal of 1+abs": lambda x: torch.reciprocal(1.0 + torch.abs(x)),
    "pow 2": lambda x: x**2,
    "pow 3 of tanh": lambda x: torch.tanh(x) ** 3,
    "scale": lambda x: x * 0.125,
    "divide": lambda x: x / 3.0,
    "shift": lambda x: 0.5 - x,
    "clamp": lambda x: torch.clamp(x, -1.5, 1.5),
    "float and back": lambda x: (x.float() * 1.1).to(x.dtype),
    "minus row maximum": lambda x: x - torch.amax(x, -1, keepdim=True).detach(),
    "minus row mean": lambda x: x - x.mean(-1, keepdim=True),
    "over row sum": lambda x: x / (1.0 + torch.abs(x).sum(-1, keepdim=True)),
    "soft-cap": lambda x: torch.tanh(x / 5.0) * 5.0,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul of tanh": lambda x, y: x * torch.tanh(y),
    "div": lambda x, y: x / (1.0 + torch.abs(y)),
    "maximum": torch.maximum,
    "least": lambda x, y: -torch.maximum(-x, -y),  # Thunder has no gradient for minimum
}
KINKED = ("clamp", "maximum", "least")
SOFTMAX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "safe_softmax": lambda x: torch._safe_softmax(x, -1),
    "softmax in float32": lambda x: torch.softmax(x, -1, dtype=torch.float32).to(x.dtype),
    "softmax of floats": lambda x: torch.softmax(x.float(), -1).type_as(x),
}


def causal(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(x.shape[-2]), torch.arange(x.shape[-1])
    return torch.where(rows[:, None] + 1 >= columns[None, :], x, -30.0)


def lower_triangle(x: torch.Tensor) -> torch.Tensor:
    open_ = torch.ones(x.shape[-2], x.shape[-1], dtype=torch.bool).tril()
    return x.masked_fill(~open_, -20.0)


MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "where": lambda x, m: torch.where(m, x, -10.0),
    "masked_fill": lambda x, m: x.masked_fill(m, -5.0),
    "masked by -inf but for one column": lambda x, m: torch.where(m | (torch.arange(x.shape[-1]) == 0), x, -torch.inf),
}


def strided(values: torch.Tensor, r: random.Random) -> torch.Tensor:
    """The same shape, in memory some other way."""
    kind = r.choice(("contiguous", "contiguous", "swapped", "sliced", "expanded", "columns apart", "transposed"))
    n = values.ndim
    if kind == "swapped" and n >= 3:
        i, j = r.sample(range(n - 1), 2)
        return values.transpose(i, j).contiguous().transpose(i, j)
    if kind == "transposed" and n >= 2:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "sliced" and n:
        wide = torch.zeros(*values.shape[:-1], values.shape[-1] + 3, dtype=values.dtype)
        wide[..., 1 : 1 + values.shape[-1]] = values
        return wide[..., 1 : 1 + values.shape[-1]]
    if kind == "columns apart" and n:
        return torch.stack((values, values), -1)[..., 0]
    if kind == "expanded" and n:
        axis = r.randrange(n)
        return values.select(axis, 0).unsqueeze(axis).expand(values.shape)
    return values


def generate(seed: int) -> Case:
    """Case number `seed`: always the same."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    shape = (*(r.choice(LENGTHS) for _ in range(r.randint(0, 4))), r.choice(WIDTHS))
    dtype = r.choice(DTYPES)
    case = Case(shape, dtype, [])

    def broadcast() -> tuple[int, ...]:
        sizes = [n if r.random() < 0.5 else 1 for n in shape]
        return tuple(sizes[r.randint(0, len(sizes) - 1) :]) if r.random() < 0.3 else tuple(sizes)

    for i in range(r.randint(1, 4)):
        size = shape if i == 0 else (() if r.random() < 0.1 else broadcast())
        values = strided((torch.randn(size) * 2).to(dtype), r)
        case.tensors.append(values.requires_grad_(i == 0 or r.random() < 0.4))
    floats = len(case.tensors)
    masks = [i + floats for i in range(r.randint(0, 2))]
    case.tensors += [strided(torch.rand(broadcast()) < 0.6, r) for _ in masks]
    full = [0]

    def emit(what: str, function: Callable[..., Any], *operands: int) -> None:
        # Decided here: inside of thunder.jit a proxy's dtype is not torch's.
        case.program.append(
            (what, in_half(function) if what in KINKED and dtype != torch.float32 else function, operands)
        )
        full.append(len(case.tensors) + len(case.program) - 1)

    def grow(steps: int) -> None:
        for _ in range(steps):
            x = full[-1] if r.random() < 0.8 else r.choice(full)
            kind = r.random()
            if kind < 0.45:
                what = r.choice([*UNARY])
                emit(what, UNARY[what], x)
            elif kind < 0.8:
                what = r.choice([*BINARY])
                emit(what, BINARY[what], x, r.choice([*range(floats), *full]))
            elif kind < 0.9 and masks:
                what = r.choice([*MASKED])
                emit(what, MASKED[what], x, r.choice(masks))
            elif len(shape) > 1:
                emit(*r.choice((("causal", causal), ("tril", lower_triangle))), x)

    grow(r.randint(0, 5))
    for _ in range(r.choice((1, 1, 1, 2))):
        what = r.choice([*SOFTMAX])
        emit(what, SOFTMAX[what], full[-1])
        grow(r.randint(0, 4))
    if len(case.program) == 1:
        emit("scale", UNARY["scale"], full[-1])
    outputs = [full[-1]]
    if r.random() < 0.3:
        outputs.append(r.choice(full[1:]))
    if r.random() < 0.2:
        case.program.append(("row sum", lambda x: x.sum(-1), (full[-1],)))
        outputs.append(len(case.tensors) + len(case.program) - 1)
    case.outputs = tuple(dict.fromkeys(outputs))
    return case


def results(case: Case, function: Callable[..., Any]) -> list[torch.Tensor]:
    """Outputs and gradients, for the case's cotangents."""
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in case.tensors]
    outputs = function(*leaves)
    torch.manual_seed(1)
    cotangents = [torch.randn(o.shape).to(o.dtype) for o in outputs]
    wanted = [t for t in leaves if t.requires_grad]
    pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    gradients = torch.autograd.grad([o for o, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
    # Of a tensor that no gradient reaches, eager says None and Thunder zeros.
    return [
        *(o.detach() for o in outputs),
        *(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, wanted, strict=True)),
    ]


def oracle(case: Case) -> Oracle:
    """Results with eager's rounding steps; gradients of a half type with those of Thunder's rules, which round more."""
    eager = Oracle(lambda: results(case, case.function()))
    if case.dtype == torch.float32:
        return eager
    plain = regions.jit(case.function(), executors=[])
    results(case, plain)  # traced before the roundings count
    thunders = Oracle(lambda: results(case, plain))
    count = len(case.outputs)
    thunders.want[:count] = eager.want[:count]
    for run, own in zip(thunders.runs, eager.runs, strict=True):
        run[:count] = own[:count]
    return thunders


def check(seed: int) -> int:
    """How many regions case `seed` has. Raises AssertionError, with the case in words, if a kernel's result differs."""
    case = generate(seed)
    right = oracle(case)
    jitted = regions.jit(case.function())
    results(case, jitted)
    count = regions.use_kernels(jitted)
    got = results(case, jitted)
    assert len(got) == len(right.want), f"case {seed}\n{case}"
    for i, g in enumerate(got):
        problem = right.problem(i, g)
        assert problem is None, f"case {seed}, result {i}: {problem}\n{case}"
    return count


def faults(value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Wrong versions of a result: scaled, with two (unequal) elements swapped, with one dropped."""
    wrong = {"scaled": value * 1.05}
    flat = value.flatten()
    least, greatest = flat.argmin(), flat.argmax()
    if flat[greatest] - flat[least] > 1e-2 * flat.abs().max():
        swapped = flat.clone()
        swapped[least], swapped[greatest] = flat[greatest], flat[least]
        wrong["swapped"] = swapped.view_as(value)
        dropped = flat.clone()
        dropped[flat.abs().argmax()] = 0
        wrong["dropped"] = dropped.view_as(value)
    return wrong


def missed(seed: int) -> list[str]:
    """The faults that, made in all results of case `seed` but those of mere rounding, no comparison would notice."""
    right = oracle(generate(seed))
    noticed: dict[str, bool] = {}
    for i, want in enumerate(right.want):
        if right.is_rounding(i):
            continue
        for fault, wrong in faults(want).items():
            noticed[fault] = noticed.get(fault, False) or right.problem(i, wrong) is not None
    assert noticed, f"case {seed} has no result to compare"
    return [fault for fault, seen in noticed.items() if not seen]


def main() -> None:
    from thunder_npu.virtual_npu import triton_cpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="regions, forward and backward")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    given = parser.parse_args()
    triton_cpu.install()
    cases = kernels = 0
    failures: list[str] = []
    start = time.monotonic()
    with regions.without_bishengir():
        while kernels < given.count:
            try:
                found = check(given.seed + cases)
            except Exception as error:
                found = 1
                failures.append(f"case {given.seed + cases}: {type(error).__name__}: {error}")
                print(failures[-1], flush=True)
            cases, kernels = cases + 1, kernels + found
            if cases % 100 == 0:
                print(f"{cases} programs, {kernels} regions, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{kernels} regions of {cases} programs, {len(failures)} failures")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
