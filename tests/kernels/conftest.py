"""Kernels run on CPU tensors through the virtual NPU's Triton driver, or on a GPU: THUNDER_NPU_TEST_DEVICE=cuda."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
DEVICE = os.environ.get("THUNDER_NPU_TEST_DEVICE", "cpu")


@pytest.fixture(scope="module")
def device() -> Iterator[str]:
    """Where the kernels' tensors live. On the CPU they are compiled for an Ascend910B2 and run on host memory."""
    if DEVICE == "cpu":
        from triton.runtime import driver

        from thunder_npu.virtual_npu import triton_cpu

        triton_cpu.install("Ascend910B2")
        yield DEVICE
        driver.reset_active()
    else:
        yield DEVICE
