"""What only a GPU can show: THUNDER_NPU_TEST_DEVICE=cuda python -m pytest tests/kernels."""

import os

import pytest
import torch

from thunder_npu import kernels
from thunder_npu.kernels.launch import launch

pytestmark = pytest.mark.skipif(os.environ.get("THUNDER_NPU_TEST_DEVICE") != "cuda", reason="needs a GPU")
WIDTHS = (
    1, 2, 3, 4, 7, 8, 12, 15, 20, 31, 33, 48, 63, 100, 124, 129, 197, 256, 257, 577, 1024, 1500, 3001, 4097, 5001, 8191,
    8192, 12288, 12289, 16384, 20000, 24001, 32768, 32769, 40001, 50257, 65536, 65537, 128256, 262144,
)  # fmt: skip


def worst(result: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    return ((result.double() - exact).abs() / scale.clamp(min=1e-30)).max().item()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_worse_than_twice_eager(width: int, device: str) -> None:
    """Every plan of the GPU's tables; also from memory that is not 16-byte aligned.

    Errors are relative for a softmax, and relative to the row's largest term where terms are subtracted.
    """
    torch.manual_seed(width)
    rows = max(130, 40_000 // width)  # more than a tile of narrow rows has
    for offset in (0, 1):
        x = torch.randn(rows * width + offset, device=device).mul_(4)[offset:].view(rows, width)
        for op, eager in ((kernels.softmax, torch.softmax), (kernels.log_softmax, torch.log_softmax)):
            exact = eager(x.double(), -1)
            scale = exact if op is kernels.softmax else exact.abs().amax(-1, keepdim=True)
            assert worst(op(x, -1), exact, scale) <= 2 * worst(eager(x, -1), exact, scale) + 2**-23
            rounded = eager(x.bfloat16().double(), -1)
            limit = 2**-8 * rounded.abs() + 1e-6 * scale
            assert ((op(x, -1, torch.bfloat16).double() - rounded).abs() <= limit).all()
        grad, result = torch.randn_like(x), torch.softmax(x, -1)
        product = grad.double() * result.double()
        exact = product - result.double() * product.sum(-1, keepdim=True)
        scale = product.abs().amax(-1, keepdim=True)
        ours = kernels.softmax_backward(grad, result, -1, torch.float32)
        theirs = torch._softmax_backward_data(grad, result, -1, torch.float32)
        assert worst(ours, exact, scale) <= 2 * worst(theirs, exact, scale) + 2**-24


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
    tolerance = {"rtol": 2**-7, "atol": 1e-30} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    for kernel, eager in (
        ("softmax", torch.softmax), ("log_softmax", torch.log_softmax), ("safe_softmax", torch._safe_softmax)
    ):  # fmt: skip
        launch(kernel, (x,), result, 1)
        torch.testing.assert_close(result, eager(x, -1), equal_nan=True, **tolerance)
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
        assert (difference <= tolerance["rtol"] * (exact[1:-1].abs() + scale[1:-1].amax(-1, keepdim=True))).all()
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
