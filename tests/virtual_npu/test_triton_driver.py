"""kernel[grid](…) through Triton's real JIT on the CPU: specialisation, autotuner, cache, hooks, limits, faults."""
# ruff: noqa: N803 (constexpr arguments of Triton kernels are upper case)

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel
from triton.compiler.errors import MLIRCompilationError

from thunder_npu.virtual_npu import triton_cpu
from thunder_npu.virtual_npu.recording import counters, record
from thunder_npu.virtual_npu.triton_cpu import bishengir
from thunder_npu.virtual_npu.triton_cpu.driver import front_end

NPU = vars(torch).get("npu")
DEVICE = "npu" if NPU is not None and NPU.is_available() else "cpu"
ACTIVE = triton.runtime.driver


@pytest.fixture(autouse=True, scope="module")
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache hit skips the compiler: every module starts with an empty cache, on the default SoC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        triton_cpu.install()
        yield
        triton_cpu.install()


@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0) + tl.load(y + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def softmax(x, y, n_rows, n_cols, RB: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(n_rows, RB), tl.num_programs(0)):
        r = tile * RB + tl.arange(0, RB)
        m = (r[:, None] < n_rows) & (c[None, :] < n_cols)
        v = tl.load(x + r[:, None] * n_cols + c[None, :], mask=m, other=-float("inf")).to(tl.float32)
        v = v - tl.max(v, axis=1)[:, None]
        e = tl.exp(v)
        p = e / tl.sum(e, axis=1)[:, None]
        tl.store(y + r[:, None] * n_cols + c[None, :], p.to(y.dtype.element_ty), mask=m)


def operands(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(n).to(DEVICE) for _ in range(3))  # type: ignore[return-value]


def recompile(kernel: Any) -> None:
    """Forget what the process knows of a kernel, not what is on disk."""
    kernel.cache.clear()


# ---- the JIT ---------------------------------------------------------------------------------------------------------


def test_a_launch_computes_and_is_recorded() -> None:
    x, y, out = operands(1000)
    with record() as calls:
        add[(4,)](x, y, out, 1000, B=256)
    (launch,) = (call for call in calls if call.name == "add")
    assert launch.grid == (4, 1, 1)
    assert launch.unified_buffer_bytes == triton_cpu.compile_reports()[-1].bytes_planned > 0
    assert launch.start_ns < launch.end_ns
    assert torch.equal(out, x + y)
    assert triton_cpu.scratch_bytes_live() == 0


def test_results_of_earlier_operators_are_visible_and_seen_by_later_ones() -> None:
    x, y, out = operands(4096)
    for step in range(20):
        x = x * 0.5 + step
        add[(4,)](x, y, out, 4096, B=1024)
        y = out - x
    torch.testing.assert_close(out, x + y)


def test_integers_are_specialised_to_one_and_to_multiples_of_sixteen() -> None:
    recompile(add)
    before = len(triton_cpu.compile_reports())
    for n in (1, 7, 9, 16, 32, 1):
        x, y, out = operands(n)
        add[(1,)](x, y, out, n, B=32)
        assert torch.equal(out, x + y)
    assert len(triton_cpu.compile_reports()) - before == 3  # 1; 7 and 9; 16 and 32


def test_grid_may_be_a_function_and_options_reach_the_compiler() -> None:
    x, y, out = operands(2000)
    add[lambda meta: (triton.cdiv(2000, meta["B"]),)](x, y, out, 2000, B=512, num_warps=8, multibuffer=False)
    assert torch.equal(out, x + y)
    ((_, kernel),) = [item for item in add.cache[ACTIVE.active.get_current_device()].items() if "512" in item[0]]
    assert kernel.metadata.multibuffer is False
    assert kernel.metadata.num_warps == 8


def test_autotune_skips_what_does_not_fit() -> None:
    tuned = triton.autotune([triton.Config({"B": b}) for b in (1 << 17, 512)], key=["n"])(add)
    x, y, out = operands(3000)
    tuned[lambda meta: (triton.cdiv(3000, meta["B"]),)](x, y, out, 3000)
    assert tuned.best_config.kwargs == {"B": 512}
    assert torch.equal(out, x + y)


def test_warmup_compiles_and_does_not_launch() -> None:
    recompile(add)
    before, launches = len(triton_cpu.compile_reports()), counters().get("add", 0)
    add.warmup(torch.float32, torch.float32, torch.float32, 100, B=64, grid=(1,))
    assert len(triton_cpu.compile_reports()) == before + 1
    assert counters().get("add", 0) == launches


def test_launch_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(CompiledKernel, "launch_enter_hook", lambda data: seen.append("enter " + data.get()["name"]))
    monkeypatch.setattr(CompiledKernel, "launch_exit_hook", lambda data: seen.append("exit " + data.get()["name"]))
    x, y, out = operands(64)
    add[(1,)](x, y, out, 64, B=64)
    assert seen == ["enter add aiv", "exit add aiv"]


def test_reinterpreted_tensors_and_addresses() -> None:
    x, y, out = operands(64)
    bits = x.view(torch.int32)
    add[(1,)](triton.reinterpret(bits, torch.float32), y, triton.reinterpret(out, torch.float32), 64, B=64)
    assert torch.equal(out, x + y)


@pytest.mark.skipif(DEVICE != "npu", reason="triton-ascend's do_bench needs torch.npu")
def test_do_bench() -> None:
    x, y, out = operands(64)
    assert triton.testing.do_bench(lambda: add[(1,)](x, y, out, 64, B=64), warmup=1, rep=1) > 0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(50):
            x, y, out = operands(997)
            add[(63,)](x, y, out, 997, B=16)
            assert torch.equal(out, x + y)
    finally:
        torch.set_num_threads(before)


def test_launches_from_several_python_threads() -> None:
    def launch(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(997, generator=generator).to(DEVICE) for _ in range(2))
        out = torch.empty_like(x)
        for _ in range(20):
            add[(63,)](x, y, out.zero_(), 997, B=16)
        return torch.equal(out, x + y)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(launch, range(8)))


@pytest.mark.skipif(DEVICE != "cpu", reason="torch_npu cannot be used after a fork")
def test_a_forked_process_can_launch() -> None:
    x, y, out = operands(997)
    add[(63,)](x, y, out, 997, B=16)  # starts the threads that the child will not have
    child = os.fork()
    if not child:
        out.zero_()
        add[(63,)](x, y, out, 997, B=16)
        os._exit(0 if bool((out == x + y).all()) else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- SoC and cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Ascend910B2", "Ascend910B4", "Ascend910_9391", "Ascend950PR_9599"])
def test_each_soc_has_its_own_cores_and_its_own_kernels(name: str) -> None:
    triton_cpu.install(soc=name)
    try:
        assert triton_cpu.installed()
        soc = triton_cpu.SOCS[name]
        properties = ACTIVE.active.utils.get_device_properties(ACTIVE.active.get_current_device())
        assert properties["num_vectorcore"] == soc.vector_cores == 2 * properties["num_aicore"]
        assert ACTIVE.active.get_current_target().arch == name
        x = torch.randn(37, 200).to(DEVICE)
        y = torch.empty_like(x)
        softmax[(soc.vector_cores,)](x, y, 37, 200, RB=4, BLOCK=256)
        torch.testing.assert_close(y, torch.softmax(x, -1))
        report = triton_cpu.compile_reports()[-1]
        assert (report.kernel, report.soc, report.bytes_available) == ("softmax", name, soc.unified_buffer_bytes)
    finally:
        triton_cpu.install()


def test_install_refuses_an_unknown_soc() -> None:
    with pytest.raises(ValueError, match=r"Ascend910Z.*known: Ascend910B1"):
        triton_cpu.install(soc="Ascend910Z")


def test_the_cache_on_disk_knows_soc_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    b2, b4 = (front_end(triton_cpu.SOCS[name]) for name in ("Ascend910B2", "Ascend910B4"))
    assert b2.hash() != b4.hash()
    before = b2.hash()
    monkeypatch.setattr("thunder_npu.virtual_npu.triton_cpu.toolchain.fingerprint", lambda: "other sources")
    assert b2.hash() != before


def test_a_kernel_that_needs_a_retry_warns_also_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 4096).to(DEVICE)
    y = torch.empty_like(x)
    with pytest.warns(triton_cpu.UnifiedBufferRetryWarning, match="enable-auto-multi-buffer"):
        softmax[(1,)](x, y, 5, 4096, RB=5, BLOCK=4096)
    first = triton_cpu.compile_reports()[-1]
    assert first.retries == ("enable-code-motion", "enable-auto-multi-buffer")
    assert "hivm.hir.pointer_cast" in first.hivm

    recompile(softmax)

    def compiler_must_not_run(name: str) -> str:
        raise AssertionError(name)

    monkeypatch.setattr(bishengir, "program", compiler_must_not_run)
    with pytest.warns(triton_cpu.UnifiedBufferRetryWarning, match="enable-auto-multi-buffer"):
        softmax[(1,)](x, y, 5, 4096, RB=5, BLOCK=4096)
    assert triton_cpu.compile_reports()[-1] == first
    torch.testing.assert_close(y, torch.softmax(x, -1))


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_tile_too_large_is_refused_with_the_compilers_message() -> None:
    x = torch.randn(16, 16384).to(DEVICE)
    y = torch.zeros_like(x)
    launches = counters().get("softmax", 0)
    with pytest.raises(MLIRCompilationError, match=r"ub overflow, requires \d+ bits while 1572864 bits available"):
        softmax[(1,)](x, y, 16, 16384, RB=16, BLOCK=16384)
    assert counters().get("softmax", 0) == launches
    assert not y.any()
    softmax[(1,)](x, y, 16, 16384, RB=1, BLOCK=16384)
    torch.testing.assert_close(y, torch.softmax(x, -1))


def test_a_grid_of_70000_programs_is_refused() -> None:
    x, y, out = operands(64)
    launches = counters().get("add", 0)
    with pytest.raises(RuntimeError, match="grid should be less than 65536"):
        add[(70000,)](x, y, out, 64, B=64)
    with pytest.raises(RuntimeError, match="grid should be less than 65536"):
        add[(1000, 70)](x, y, out, 64, B=64)
    assert counters().get("add", 0) == launches
    add[(65535,)](x, y, out, 64, B=64)
    assert torch.equal(out, x + y)


@triton.jit
def row_sums(x, y, n_cols, BLOCK: tl.constexpr, LOAD: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, BLOCK)
    if LOAD == "right":
        v = tl.load(x + r * n_cols + c, mask=c < n_cols, other=0.0)
    elif LOAD == "no mask":
        v = tl.load(x + r * n_cols + c)
    else:
        v = tl.load(x + r * n_cols + c, mask=c < n_cols, care_padding=False)
    tl.store(y + r, tl.sum(v, axis=0))


@pytest.mark.parametrize("load", ["right", "no mask", "wrong care_padding"])
def test_a_wrong_mask_or_padding_of_a_load_shows_as_nan(load: str) -> None:
    x = torch.ones(3, 100).to(DEVICE)
    y = torch.zeros(3).to(DEVICE)
    row_sums[(3,)](x, y, 100, BLOCK=128, LOAD=load)
    expected = {
        "right": [100.0, 100.0, 100.0],
        "no mask": [128.0, 128.0, None],  # the last tile ends outside the storage
        "wrong care_padding": [None, None, None],  # every tile has columns that were never written
    }[load]
    assert [None if value != value else value for value in y.tolist()] == expected


@triton.jit
def copy_tile(x, y, n, B: tl.constexpr, MASKED: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    if MASKED:
        tl.store(y + i, v, mask=i < n)
    else:
        tl.store(y + i, v)


@triton.jit
def copy_scattered(x, y, n, step, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + (i * step) % n, tl.load(x + i))


def test_a_wrong_mask_of_a_store_is_an_error_and_overwrites_nothing() -> None:
    x = torch.arange(100.0).to(DEVICE)
    y = torch.zeros(100).to(DEVICE)
    copy_tile[(2,)](x, y, 100, B=64, MASKED=True)
    assert torch.equal(y, x)
    y.zero_()
    with pytest.raises(
        triton_cpu.OutOfBoundsStoreError,
        match=r"copy_tile, program \(1, 0, 0\): a store of 256 bytes at byte 256 .*argument y, which has 400 bytes",
    ):
        copy_tile[(2,)](x, y, 100, B=64, MASKED=False)
    assert torch.equal(y, x)
    with pytest.raises(triton_cpu.OutOfBoundsStoreError, match=r"copy_scattered.*argument y"):
        copy_scattered[(1,)](x, y, 1000, 7, B=64)


def test_an_overflow_on_demand() -> None:
    x, y, out = operands(64)
    add[(1,)](x, y, out, 64, B=64)
    with triton_cpu.overflowing("add"):
        with pytest.raises(MLIRCompilationError, match=r"ub overflow, requires \d+ bits.*fault injected"):
            add[(1,)](x, y, out, 64, B=64)
        copy_tile[(1,)](x, out, 64, B=64, MASKED=True)
        assert torch.equal(out, x)
    add[(1,)](x, y, out, 64, B=64)
    assert torch.equal(out, x + y)
