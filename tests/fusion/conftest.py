"""Kernels of fused regions on CPU tensors, through triton-ascend's own front end and BiShengIR's memory plan."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest


@pytest.fixture(scope="session", autouse=True)
def generated_modules(tmp_path_factory):
    """Generated kernels and Triton's cache in a folder of the session's own: a cache hit would skip the compiler."""
    folder = tmp_path_factory.mktemp("regions")
    before = {name: os.environ.get(name) for name in ("THUNDER_NPU_CACHE_DIR", "TRITON_CACHE_DIR")}
    os.environ.update(THUNDER_NPU_CACHE_DIR=str(folder / "modules"), TRITON_CACHE_DIR=str(folder / "triton"))
    yield folder
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def ascend():
    """``with ascend(soc) as reports:`` makes that SoC's driver Triton's; `reports()` are BiShengIR's, of the block."""
    pytest.importorskip("triton.backends.ascend", reason="needs the package triton-ascend")
    from thunder_npu.virtual_npu import triton_cpu

    @contextmanager
    def use(soc: str = "Ascend910B2"):
        triton_cpu.install(soc=soc)
        before = len(triton_cpu.compile_reports())
        yield lambda: triton_cpu.compile_reports()[before:]

    return use
