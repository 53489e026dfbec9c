"""What only a GPU can show: THUNDER_NPU_TEST_DEVICE=cuda python -m pytest tests/kernels."""

import os

import pytest
import torch

from thunder_npu import kernels

pytestmark = pytest.mark.skipif(os.environ.get("THUNDER_NPU_TEST_DEVICE") != "cuda", reason="needs a GPU")
WIDTHS = (8, 15, 33, 100, 197, 577, 1500, 3001, 5001, 8191, 12288, 12289, 20000, 24001, 40001, 50257, 65537, 128256)


def worst(result: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    return ((result.double() - exact).abs() / scale.clamp(min=1e-30)).max().item()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_worse_than_twice_eager(width: int, device: str) -> None:
    """Every plan of the GPU's tables; also from memory that is not 16-byte aligned.

    Errors are relative for a softmax, and relative to the row's largest term where terms are subtracted.
    """
    torch.manual_seed(width)
    for offset in (0, 1):
        x = torch.randn(130 * width + offset, device=device).mul_(4)[offset:].view(130, width)
        for op, eager in ((kernels.softmax, torch.softmax), (kernels.log_softmax, torch.log_softmax)):
            exact = eager(x.double(), -1)
            scale = exact if op is kernels.softmax else exact.abs().amax(-1, keepdim=True)
            assert worst(op(x, -1), exact, scale) <= 2 * worst(eager(x, -1), exact, scale)
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


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((2**21 + 2**10, 1024), 1), ((2**15 + 2**4, 65536), 1), ((2**31 + 2**20, 1), 1), ((2, 2**21 + 2**10, 512), 1)],
)
def test_far_end_of_a_tensor_past_2_to_the_31(shape: tuple[int, ...], dim: int, device: str) -> None:
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    assert x.numel() == 2**31 + 2**20
    ours = kernels.softmax(x, dim)
    if len(shape) == 2:  # rows are independent: the last thousand are enough
        torch.testing.assert_close(ours[-1000:], torch.softmax(x[-1000:], dim))
    else:
        torch.testing.assert_close(ours[..., -64:], torch.softmax(x[..., -64:], dim))
