"""Operators whose values are random, or that only a larger construct calls: name -> (expression, check of its result).

The checks look at moments and support, and at identities that hold for any draw; the test, at the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Case = tuple[Callable[[], Any], Callable[[Any], bool]]
N = 20000


def _on_npu(*shape: int, value: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, device="npu")


def _moments(mean: float, std: float) -> Callable[[torch.Tensor], bool]:
    """Within five standard errors of the mean, and 5% of the standard deviation."""

    def check(x: torch.Tensor) -> bool:
        x = x.double()
        return abs(x.mean() - mean) < 5 * std / math.sqrt(x.numel()) + 1e-6 and abs(x.std() - std) < 0.05 * std + 1e-6

    return bool_of(check)


def bool_of(check: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], bool]:
    return lambda x: bool(check(x))


def _dropout(p: float = 0.25) -> torch.Tensor:
    return F.dropout(_on_npu(100, 200, value=1.0), p)


def _kept(x: torch.Tensor) -> bool:
    """Zeros with probability a quarter, the others scaled up."""
    kept = x != 0
    return bool(torch.allclose(x[kept], torch.tensor(4 / 3))) and abs(kept.double().mean() - 0.75) < 0.02


def _dropout_gradient() -> torch.Tensor:
    """The gradient passes exactly where the value did."""
    x = _on_npu(100, 200, value=1.0).requires_grad_()
    y = F.dropout(x, 0.25)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return torch.stack([y, gradient])


def _gen_mask() -> torch.Tensor:
    mask = torch.ops.npu._npu_dropout_gen_mask(_on_npu(1), [1000], 0.25, 7, 0)
    return (mask.cpu()[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).reshape(-1)[:1000]


def _adamw(device: str) -> torch.Tensor:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(8, 8).to(device))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.1, fused=device == "npu", amsgrad=False)
    for _ in range(3):
        parameter.grad = torch.cos(parameter.detach())
        optimizer.step()
    return parameter.detach().cpu()


def _scaler() -> torch.Tensor:
    """Unscaling divides by the scale; an inf halves the scale and skips the step; two good steps double it."""
    parameter = torch.nn.Parameter(_on_npu(4, value=1.0))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("npu", init_scale=8.0, growth_interval=2)
    seen = []
    for gradient in (1.0, math.inf, 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((parameter * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(torch.cat([parameter.detach()[:1].cpu(), torch.tensor([scaler.get_scale()])]))
    return torch.stack(seen)


OPERATORS: dict[str, Case] = {
    "aclnnInplaceNormal": (lambda: torch.randn(N, device="npu"), _moments(0, 1)),
    "aclnnNormalFloatFloat": (lambda: torch.normal(1.0, 2.0, (N,), device="npu"), _moments(1, 2)),
    "aclnnNormalFloatTensor": (lambda: torch.normal(1.0, _on_npu(N, value=2.0)), _moments(1, 2)),
    "aclnnNormalTensorFloat": (lambda: torch.normal(_on_npu(N, value=1.0), 2.0), _moments(1, 2)),
    "aclnnNormalTensorTensor": (
        lambda: torch.normal(_on_npu(N, value=1.0), _on_npu(N, value=2.0)),
        _moments(1, 2),
    ),
    "aclnnInplaceUniform": (lambda: _on_npu(N).uniform_(2, 4), _moments(3, 2 / math.sqrt(12))),
    "aclnnInplaceRandom": (
        lambda: torch.randint(3, 7, (N,), device="npu"),
        lambda x: sorted(x.unique().tolist()) == [3, 4, 5, 6],
    ),
    "aclnnInplaceBernoulli": (lambda: _on_npu(N).bernoulli_(0.3), _moments(0.3, math.sqrt(0.21))),
    "aclnnInplaceBernoulliTensor": (lambda: torch.bernoulli(_on_npu(N, value=0.3)), _moments(0.3, math.sqrt(0.21))),
    "aclnnSimThreadExponential": (lambda: torch.ops.npu.npu_sim_exponential_(_on_npu(N), 2.0), _moments(0.5, 0.5)),
    "aclnnMultinomial": (
        lambda: torch.multinomial(torch.tensor([0.0, 1.0, 3.0]).npu(), N, replacement=True),
        lambda x: bool((x != 0).all()) and abs((x == 2).double().mean() - 0.75) < 0.02,
    ),
    "aclnnRandperm": (
        lambda: torch.randperm(100, device="npu"),
        lambda x: sorted(x.tolist()) == list(range(100)) and x.tolist() != list(range(100)),
    ),
    "aclnnDropoutGenMaskV2": (_dropout, _kept),
    "aclnnDropoutDoMask": (_dropout_gradient, lambda pair: bool(torch.equal(pair[0], pair[1]))),
    "aclnnDropoutGenMask": (
        lambda: torch.ops.npu.npu_dropout_gen_mask([1000], 0.25, dtype=torch.float32, device="npu"),
        lambda mask: mask.numel() * 8 == 1024 and mask.dtype is torch.uint8,
    ),
    "aclnnApplyAdamWV2": (lambda: _adamw("npu"), lambda x: bool(torch.allclose(x, _adamw("cpu"), atol=1e-6))),
    "aclnnForeachNonFiniteCheckAndUnscale": (
        _scaler,
        lambda seen: seen.tolist() == [[0, 8], [0, 4], [-1, 4], [-2, 8]],
    ),
    "aclnnAmpUpdateScale": (_scaler, lambda seen: seen[:, 1].tolist() == [8, 4, 4, 8]),
}
