"""The compiler under test: thunder.jit with both executors, on the CPU or on the device that the environment names."""

import pytest
import thunder

import thunder_npu


@pytest.fixture
def jit():
    executors = [thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex]
    return lambda fn: thunder.jit(fn, executors=executors)
