"""Random programs: sequences of twenty operations on the npu and on the CPU, with equal results, no crash, no leak."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from thunder_npu import virtual_npu

SEQUENCES = 1000
LENGTH = 20
Step = Callable[[torch.Tensor, random.Random], torch.Tensor]


def _rows(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    """Some rows, by indices; an empty choice too."""
    return x[torch.tensor([r.randrange(x.shape[0]) for _ in range(r.randrange(4))] or [0], device=x.device)]


def _matmul(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    return torch.tanh(x @ x.transpose(-1, -2) / x.shape[-1])


def _in_place(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    y = x.clone()
    y[..., ::2].mul_(0.5).add_(r.uniform(-1, 1))
    return y


def _gradient(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(torch.softmax(leaf, r.choice([0, -1])).square().sum(), leaf)[0] + x


# Each keeps a float tensor of two axes, no axis over 24, values of moderate size.
STEPS: list[Step] = [
    lambda x, r: torch.softmax(x, r.choice([0, -1])),
    lambda x, r: torch.log_softmax(x, -1) / 10,
    lambda x, r: x.t(),
    lambda x, r: x * r.uniform(-2, 2) + r.uniform(-1, 1),
    lambda x, r: torch.tanh(x),
    lambda x, r: torch.where(x > 0, x, -0.5 * x),
    lambda x, r: x - x.mean(r.choice([0, 1]), keepdim=True),
    lambda x, r: x / (1 + x.abs().amax(-1, keepdim=True)),
    lambda x, r: torch.cat([x, x[:1]], 0)[:24],
    lambda x, r: x[:: r.choice([1, 2])],
    lambda x, r: x[:, : r.randrange(1, x.shape[1] + 1)],
    lambda x, r: x.flip(0).roll(r.randrange(3), 1),
    lambda x, r: x.cumsum(-1) / x.shape[-1],
    lambda x, r: x.sort(-1).values,
    lambda x, r: x.to(torch.bfloat16).float(),
    lambda x, r: x.clamp(-1, 1),
    lambda x, r: x.expand(2, *x.shape).sum(0) / 2,
    lambda x, r: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x, r: torch.nn.functional.gelu(x),
    lambda x, r: x.masked_fill(x.isnan() | (x > 3), r.uniform(-1, 1)),
    lambda x, r: torch.nn.functional.pad(x, (0, 1))[:, :24],
    lambda x, r: x.unique(dim=0) if x.shape[0] > 1 else x,
    _rows,
    _matmul,
    _in_place,
    _gradient,
]


def _run(seed: int, device: str) -> torch.Tensor:
    r = random.Random(seed)
    shape = r.choice([(1, 1), (3, 4), (5, 1), (1, 17), (8, 8), (7, 13)])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
    for _ in range(LENGTH):
        x = r.choice(STEPS)(x, r)
    return x.cpu()


@pytest.mark.parametrize("batch", range(10))
def test_random_sequences(batch: int) -> None:
    seeds = range(batch * SEQUENCES // 10, (batch + 1) * SEQUENCES // 10)
    with virtual_npu.leak_check():
        for seed in seeds:
            got, expected = _run(seed, "npu"), _run(seed, "cpu")
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, msg=lambda m: f"seed {seed}: {m}")  # noqa: B023
