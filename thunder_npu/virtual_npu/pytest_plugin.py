"""pytest -p thunder_npu.virtual_npu.pytest_plugin: the fixtures `virtual_npu` and `npu_calls`.

Loading the plugin turns torch's automatic import of torch_npu off, so that tests may import torch before the first test
asks for the virtual NPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

from thunder_npu.virtual_npu import library

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


@pytest.fixture
def virtual_npu() -> Iterator[ModuleType]:
    """The enabled `thunder_npu.virtual_npu`, its counters at zero; faults that the test leaves behind are cleared."""
    from thunder_npu import virtual_npu

    if library.loaded() is None:  # the launcher may have enabled it, with settings of its own
        virtual_npu.enable()
    virtual_npu.reset_counters()
    yield virtual_npu
    virtual_npu.clear_faults()


@pytest.fixture
def npu_calls(virtual_npu: ModuleType) -> Iterator[object]:
    """The record of the aclnn calls and Triton launches of the test so far."""
    with virtual_npu.record() as calls:
        yield calls
