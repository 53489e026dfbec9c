"""The off switch and the fuel of the fusion pass: how many regions a compilation makes, and the report's word on it."""

from __future__ import annotations

import pytest
import torch

import thunder_npu
from tests.fusion.regions import backward_regions, forward_regions, jit


def two_chains(x):
    y = torch.matmul(torch.softmax(x * 0.5, -1) * 2.0, x)
    return torch.matmul(torch.softmax(y * 0.5, -1) * 2.0, x)


def compiled(**options):
    torch.manual_seed(0)
    x = torch.randn(8, 8, requires_grad=True)
    jitted = jit(two_chains, **options)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), two_chains(x), rtol=1e-5, atol=1e-6)
    jitted(x).sum().backward()
    (want,) = torch.autograd.grad(two_chains(x).sum(), x)
    torch.testing.assert_close(x.grad, want, rtol=1e-4, atol=1e-4)
    return jitted


@pytest.mark.parametrize(
    ("fuel", "forward", "backward"), [(-1, 2, 2), (0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 2, 1), (9, 2, 2)]
)
def test_fuel_counts_regions_forward_first(fuel, forward, backward):
    jitted = compiled(fusion_fuel=fuel)
    assert (len(forward_regions(jitted)), len(backward_regions(jitted))) == (forward, backward)
    assert thunder_npu.explain(jitted).notes == ([] if fuel < 0 else [f"fusion_fuel={fuel}: {MEANING}"])


MEANING = thunder_npu.options.OPTIONS["fusion_fuel"].meaning


def test_fuel_is_full_again_for_another_shape():
    jitted = compiled(fusion_fuel=1)
    jitted(torch.randn(4, 4, requires_grad=True))
    assert len(forward_regions(jitted)) == 1


def test_off():
    jitted = compiled(fusion=False)
    assert not forward_regions(jitted)
    assert not backward_regions(jitted)
    report = thunder_npu.explain(jitted)
    assert "fusion=False" in str(report).splitlines()[-1]
    assert {row["symbol"] for row in report.rows} == {"triton_ascend_softmax", "triton_ascend_softmax_backward"}
