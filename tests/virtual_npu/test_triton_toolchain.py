"""What the compilers report (SoC table, unified-buffer limits) and what is said when one is missing."""
# ruff: noqa: N803 (constexpr arguments of Triton kernels are upper case)

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import MLIRCompilationError

from thunder_npu.virtual_npu import triton_cpu
from thunder_npu.virtual_npu.soc import SOCS
from thunder_npu.virtual_npu.triton_cpu import toolchain

# ---- the SoC table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOCS)
def test_soc_table_is_the_compilers(name: str) -> None:
    soc = SOCS[name]
    optimizer = toolchain.program("bishengir-opt-a5" if soc.a5 else "bishengir-opt")
    result = subprocess.run(
        [optimizer, "-", f"--hacc-append-device-spec=target={name}"], input="module {}", capture_output=True, text=True
    )
    found = {key: int(value) for key, value in re.findall(r'"([A-Z_]+)", (\d+)', result.stdout)}
    assert found["CUBE_CORE_COUNT"] == soc.cube_cores
    assert found["VECTOR_CORE_COUNT"] == soc.vector_cores
    assert found["UB_SIZE"] == 8 * soc.unified_buffer_bytes


# ---- unified buffer --------------------------------------------------------------------------------------------------


@triton.jit
def softmax(x, y, n_rows, n_cols, sx, sy, RB: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(n_rows, RB), tl.num_programs(0)):
        r = tile * RB + tl.arange(0, RB)
        m = (r[:, None] < n_rows) & (c[None, :] < n_cols)
        v = tl.load(x + r[:, None] * sx + c[None, :], mask=m, other=-float("inf")).to(tl.float32)
        v = v - tl.max(v, axis=1)[:, None]
        e = tl.exp(v)
        p = e / tl.sum(e, axis=1)[:, None]
        tl.store(y + r[:, None] * sy + c[None, :], p.to(y.dtype.element_ty), mask=m)


SIGNATURE = {"x": "*bf16", "y": "*bf16", "n_rows": "i32", "n_cols": "i32", "sx": "i32", "sy": "i32"}


def softmax_report(rows: int, width: int, soc: str = "Ascend910B2", **options: bool) -> triton_cpu.BufferReport:
    constants = {"RB": rows, "BLOCK": width}
    return triton_cpu.compile_kernel(softmax, SIGNATURE, constants, soc=soc, options=options).report


# Largest power of two of rows that keeps double buffering on a 910B, by width: measured, softmax, one pass.
@pytest.mark.parametrize(("width", "rows"), [(32, 512), (128, 128), (256, 64), (1024, 16), (4096, 4), (16384, 1)])
def test_tile_limits_of_softmax(width: int, rows: int) -> None:
    fitting, larger = softmax_report(rows, width), softmax_report(2 * rows, width)
    assert fitting.fits
    assert not fitting.retries
    assert 0 < fitting.bytes_planned <= fitting.bytes_available == 192 * 1024
    assert larger.retries or not larger.fits


def test_one_row_of_32768_misses_by_32_bytes() -> None:
    report = softmax_report(1, 32768)
    assert not report.fits
    assert report.bytes_planned == report.bytes_available + 32
    assert "ub overflow, requires" in report.message
    assert not report.hivm


def test_double_buffering_costs_memory_and_can_be_turned_off() -> None:
    assert softmax_report(6, 4096).retries == ("enable-code-motion", "enable-auto-multi-buffer")
    alone = softmax_report(6, 4096, multibuffer=False)
    assert alone.fits
    assert not alone.retries
    assert softmax_report(4, 4096).bytes_planned > softmax_report(4, 4096, multibuffer=False).bytes_planned


def test_950_has_a_larger_buffer() -> None:
    report = softmax_report(5, 4096, "Ascend950PR_9599")
    assert report.fits
    assert report.bytes_available == 248 * 1024
    assert not softmax_report(6, 4096, "Ascend950PR_9599").fits
    assert not softmax_report(4, 4096, "Ascend950PR_9599", multibuffer=True).fits


def test_a_report_reads_as_a_sentence() -> None:
    text = str(softmax_report(6, 4096))
    assert re.fullmatch(
        r"softmax: [\d,]+ of 196,608 bytes of unified buffer on Ascend910B2, "
        r"only after enable-code-motion, enable-auto-multi-buffer",
        text,
    )


def test_a_kernel_that_does_not_fit_still_runs_when_compiled_alone() -> None:
    kernel = triton_cpu.compile_kernel(softmax, SIGNATURE, {"RB": 1, "BLOCK": 32768})
    x = torch.randn(3, 30000).to(torch.bfloat16)
    y = torch.zeros_like(x)
    kernel.run((2,), x, y, 3, 30000, 30000, 30000)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    by_address = torch.zeros_like(x)
    kernel.run((2,), x.data_ptr(), by_address.data_ptr(), 3, 30000, 30000, 30000)
    assert torch.equal(by_address, y)
    with pytest.raises(TypeError, match="5 arguments for the 6"):
        kernel.run((2,), x, y, 3, 30000, 30000)


def test_compile_kernel_names_what_is_missing_or_unknown() -> None:
    with pytest.raises(ValueError, match=r"softmax takes .*signature and constants name"):
        triton_cpu.compile_kernel(softmax, SIGNATURE, {"RB": 1})
    with pytest.raises(ValueError, match=r"unknown SoC 'Ascend1'"):
        triton_cpu.compile_kernel(softmax, SIGNATURE, {"RB": 1, "BLOCK": 8}, soc="Ascend1")


@triton.jit
def to_double(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i).to(tl.float64))


def test_other_compiler_errors_are_tritons_own() -> None:
    kernel = triton_cpu.compile_kernel(to_double, {"x": "*fp32", "y": "*fp64"}, {"B": 64})
    with pytest.raises(MLIRCompilationError, match="unsupported datatype"):
        _ = kernel.report


# ---- missing tools ---------------------------------------------------------------------------------------------------


def test_without_a_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(triton_cpu.ToolchainError, match=r"no C compiler.*install one"):
        toolchain.c_compiler.__wrapped__()


def test_c_compiler_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -O2")
    assert toolchain.c_compiler.__wrapped__() == (sys.executable, "-O2")


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return nonsense; }\n")
    with pytest.raises(triton_cpu.ToolchainError, match="nonsense"):
        toolchain.link(tmp_path / "broken.so", source)


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [("triton", "pip install triton-ascend"), ("ascendnpuir", "pip install ascendnpu-ir")],
)
def test_without_a_package(monkeypatch: pytest.MonkeyPatch, missing: str, remedy: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(triton_cpu.ToolchainError, match=remedy):
        toolchain.check.__wrapped__()


def test_with_the_package_triton_installed_over_triton_ascend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "triton"
    (package / "backends" / "nvidia").mkdir(parents=True)
    (package / "__init__.py").touch()
    upstream = importlib.util.spec_from_file_location("triton", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: upstream)
    with pytest.raises(triton_cpu.ToolchainError, match=r"is not triton-ascend.*pip uninstall -y triton"):
        toolchain.check.__wrapped__()


def test_with_an_unsupported_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.9.0")
    with pytest.raises(triton_cpu.ToolchainError, match=r"triton-ascend 3\.9\.0 is not supported"):
        toolchain.check.__wrapped__()


def test_importing_the_package_needs_neither_triton_nor_torch() -> None:
    code = (
        "import sys; from thunder_npu.virtual_npu import triton_cpu; triton_cpu.SOCS; triton_cpu.ToolchainError; "
        "assert not {'triton', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_program_that_is_not_executable_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = tmp_path / "site-packages" / "bishengir-opt"
    original.parent.mkdir()
    original.write_text("#!/bin/sh\necho ran\n")
    original.chmod(0o444)
    monkeypatch.setenv("THUNDER_NPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "_binaries", lambda: original.parent)
    path = toolchain.program.__wrapped__("bishengir-opt")
    assert Path(path).is_relative_to(tmp_path / "cache")
    assert subprocess.run([path], capture_output=True, text=True).stdout == "ran\n"
    assert not os.access(original, os.X_OK)
    assert toolchain.program.__wrapped__("bishengir-opt") == path
    Path(path).write_text("#!/bin/sh\n")  # half of it
    assert toolchain.program.__wrapped__("bishengir-opt") == path
    assert Path(path).read_text() == original.read_text()
    with pytest.raises(triton_cpu.ToolchainError, match=r"has no .*bishengir-compile"):
        toolchain.program.__wrapped__("bishengir-compile")
