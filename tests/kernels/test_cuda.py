"""What only a GPU can show: THUNDER_NPU_TEST_DEVICE=cuda python -m pytest tests/kernels."""

import os

import pytest
import torch

from thunder_npu import kernels
from thunder_npu.kernels.launch import launch
from thunder_npu.kernels.region import COLUMN, Node, Region, Tensor
from thunder_npu.kernels.region_kernel import RegionKernel

pytestmark = pytest.mark.skipif(os.environ.get("THUNDER_NPU_TEST_DEVICE") != "cuda", reason="needs a GPU")
WIDTHS = (
    1, 2, 3, 4, 7, 8, 12, 15, 20, 31, 33, 48, 63, 100, 124, 129, 197, 256, 257, 577, 1024, 1500, 3001, 4097, 5001, 8191,
    8192, 12288, 12289, 16384, 20000, 24001, 32768, 32769, 40001, 50257, 65536, 65537, 128256, 262144,
)  # fmt: skip


def errors(result: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> tuple[float, float]:
    """Of the rows' largest errors over their scale: the largest, and the root mean square."""
    found = ((result.double() - exact).abs() / scale.clamp(min=1e-30)).amax(-1)
    return found.max().item(), found.square().mean().sqrt().item()


def no_worse_than_twice(ours: tuple[float, float], theirs: tuple[float, float]) -> bool:
    """The mean without allowance; the largest of some hundred rows is a matter of chance, within a digit of float32."""
    return ours[1] <= 2 * theirs[1] + 2**-30 and ours[0] <= 2 * theirs[0] + 2**-23


@pytest.mark.parametrize("width", WIDTHS)
def test_no_worse_than_twice_eager(width: int, device: str) -> None:
    """Every plan of the GPU's tables; also from memory that is not 16-byte aligned.

    Errors are relative for a softmax, and relative to the row's largest term where terms are subtracted: how far those
    cancel is up to the input.
    """
    torch.manual_seed(width)
    rows = max(300, 100_000 // width)  # more than a tile of narrow rows has
    for offset in (0, 1):
        x = torch.randn(rows * width + offset, device=device).mul_(4)[offset:].view(rows, width)
        for op, eager in ((kernels.softmax, torch.softmax), (kernels.log_softmax, torch.log_softmax)):
            exact = eager(x.double(), -1)
            scale = exact if op is kernels.softmax else exact.abs().amax(-1, keepdim=True)
            assert no_worse_than_twice(errors(op(x, -1), exact, scale), errors(eager(x, -1), exact, scale))
            rounded = eager(x.bfloat16().double(), -1)
            limit = 2**-8 * rounded.abs() + 1e-6 * scale
            assert ((op(x, -1, torch.bfloat16).double() - rounded).abs() <= limit).all()
        grad = torch.randn_like(x)
        for backward, eager_backward, result in (
            (kernels.softmax_backward, torch._softmax_backward_data, torch.softmax(x, -1)),
            (kernels.log_softmax_backward, torch._log_softmax_backward_data, torch.log_softmax(x, -1)),
        ):
            exact = eager_backward(grad.double(), result.double(), -1, torch.float64)
            term = grad.double() * result.double() if backward is kernels.softmax_backward else grad.double()
            scale = torch.maximum(term.abs(), exact.abs()).amax(-1, keepdim=True)
            ours = backward(grad, result, -1, torch.float32)
            theirs = eager_backward(grad, result, -1, torch.float32)
            assert no_worse_than_twice(errors(ours, exact, scale), errors(theirs, exact, scale))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", WIDTHS)
def test_special_values_stay_in_their_row(width: int, dtype: torch.dtype, device: str) -> None:
    """NaN, infinities and rows of nothing but -inf, in the first rows and in the last; nothing is written around."""
    torch.manual_seed(width)
    rows, infinity = max(9, 5000 // width), float("inf")
    x = torch.randn(rows, width, device=device).mul_(4).to(dtype)
    x[[0, -1]] = -infinity
    x[1, -1], x[2, 0], x[-2, width // 2], x[-3, -1] = float("nan"), infinity, float("nan"), infinity
    x[[3, -4], :-1] = -infinity  # the only finite value is the last
    memory = torch.full((64 + x.numel() + 64,), 7.0, device=device, dtype=dtype)
    result = memory[64:-64].view(rows, width)
    rtol, atol = (2**-7, 1e-30) if dtype == torch.bfloat16 else (1e-5, 1e-6)
    for kernel, eager in (
        ("softmax", torch.softmax), ("log_softmax", torch.log_softmax), ("safe_softmax", torch._safe_softmax)
    ):  # fmt: skip
        launch(kernel, (x,), result, 1)
        # Next to 0, log_softmax is log(1 + few digits of float32), whatever the dtype of the result.
        allowed = 2**-22 if kernel == "log_softmax" else 0
        torch.testing.assert_close(result, eager(x, -1), equal_nan=True, rtol=rtol, atol=max(atol, allowed))
    grad, out = torch.randn_like(x), torch.softmax(torch.randn_like(x), -1)
    grad[0, 0], grad[-1, -1] = infinity, float("nan")
    for kernel, backward in (
        ("softmax_backward", torch._softmax_backward_data), ("log_softmax_backward", torch._log_softmax_backward_data)
    ):  # fmt: skip
        y = out if kernel == "softmax_backward" else out.log()
        launch(kernel, (grad, y), result, 1)
        exact = backward(grad.double(), y.double(), -1, torch.float64)
        assert torch.equal(result.isfinite(), exact.isfinite())
        difference = (result.double() - exact)[1:-1].abs()
        scale = grad.double().abs() * (y.double().abs() if kernel == "softmax_backward" else 1)
        assert (difference <= rtol * (exact[1:-1].abs() + scale[1:-1].amax(-1, keepdim=True))).all()
    assert (memory[:64] == 7).all()
    assert (memory[-64:] == 7).all()


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((2**21 + 2**10, 1024), 1),
        ((2**15 + 2**4, 65536), 1),
        ((2**31 + 2**20, 1), 1),
        ((683 * 2**20, 3), 1),
        ((2, 2**21 + 2**10, 512), 1),
    ],
)
def test_far_end_of_a_tensor_past_2_to_the_31(shape: tuple[int, ...], dim: int, device: str) -> None:
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    assert x.numel() == 2**31 + 2**20
    ours = kernels.softmax(x, dim)
    if len(shape) == 2:  # rows are independent: the last thousand are enough
        torch.testing.assert_close(ours[-1000:], torch.softmax(x[-1000:], dim))
    else:
        torch.testing.assert_close(ours[..., -64:], torch.softmax(x[..., -64:], dim))


@pytest.mark.parametrize("outer", [1, 2])
def test_far_end_of_a_region_past_2_to_the_31_rows(outer: int, device: str) -> None:
    """softmax(x · m): with and without an outer axis, over which m repeats."""
    rows = 2**31 + 2**20
    places = ((rows, outer) if outer > 1 else None, (1, rows), COLUMN)
    x = Tensor((outer, rows, 2), torch.bfloat16, places)
    m = Tensor((1, rows, 2), torch.bfloat16, (None, *places[1:]))
    nodes = (
        Node("input", (), torch.bfloat16, 0),
        Node("input", (), torch.bfloat16, 1),
        Node("mul", (0, 1), torch.bfloat16),
        Node("softmax", (2,), torch.bfloat16),
    )
    kernel = RegionKernel(Region(outer * rows, 2, nodes, (x, m), ((3, x),)))
    scores, factors = (torch.randn(t.shape, device=device, dtype=torch.bfloat16) for t in (x, m))
    (ours,) = kernel(scores, factors)
    for last in (slice(0, 1000), slice(2**31 - 500, 2**31 + 500), slice(-1000, None)):
        expected = torch.softmax(scores[:, last] * factors[:, last], -1)
        torch.testing.assert_close(ours[:, last], expected)
