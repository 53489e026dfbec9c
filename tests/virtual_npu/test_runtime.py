"""The CANN runtime: devices, memory and its accounting, streams, events, properties."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

from thunder_npu import virtual_npu


def test_device_and_its_properties() -> None:
    assert torch.npu.is_available()
    assert torch.npu.current_device() == 0
    assert torch.npu.get_device_name(0) == "Ascend910B2"
    properties = torch.npu.get_device_properties(0)
    assert (properties.cube_core_num, properties.vector_core_num) == (24, 48)
    assert properties.total_memory == virtual_npu.memory().limit
    free, total = torch.npu.mem_get_info()
    assert total == virtual_npu.memory().limit
    assert free == total - virtual_npu.memory().in_use


def test_accounting_follows_torch_npus_allocator() -> None:
    gc.collect()
    torch.npu.empty_cache()
    before = virtual_npu.memory()
    assert before.in_use == torch.npu.memory_reserved()
    x = torch.empty(16 << 20, device="npu")
    during = virtual_npu.memory()
    assert during.in_use == torch.npu.memory_reserved() >= before.in_use + x.nbytes
    assert during.allocations > before.allocations
    del x
    torch.npu.empty_cache()
    after = virtual_npu.memory()
    assert after.in_use == before.in_use
    assert after.peak >= during.in_use
    virtual_npu.reset_peak()
    assert virtual_npu.memory().peak == before.in_use


def test_fresh_memory_is_nan() -> None:
    torch.npu.empty_cache()
    x = torch.empty(8 << 20, device="npu")
    assert x.isnan().all().item()


def test_leak_check_passes_and_fails() -> None:
    x = torch.randn(4, 8, device="npu")
    with virtual_npu.leak_check():
        for _ in range(10):
            torch.softmax(x @ x.t(), -1).sum().item()
    kept = []
    with pytest.raises(RuntimeError, match="leak on the virtual NPU; bytes on device 0"), virtual_npu.leak_check():
        kept.append(torch.empty(32 << 20, device="npu"))


def test_copies() -> None:
    x = torch.randn(1000)
    assert torch.equal(x.to("npu").cpu(), x)
    pinned = x.pin_memory()
    assert torch.equal(pinned.to("npu", non_blocking=True).to("cpu", non_blocking=True), x)
    back = torch.empty(1000)
    back.copy_(x.to("npu"))
    assert torch.equal(back, x)
    assert torch.equal(x.to("npu")[::3].cpu(), x[::3])
    assert torch.equal(x.to("npu").half().cpu(), x.half())


def test_stream_and_event_times() -> None:
    stream = torch.npu.Stream()
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.randn(64, 64, device="npu")
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        start.record()
        time.sleep(0.02)
        y = x @ x
        end.record()
    torch.npu.current_stream().wait_stream(stream)
    end.synchronize()
    assert stream.query()
    assert end.query()
    assert 20 <= start.elapsed_time(end) < 60000
    torch.testing.assert_close(y.cpu(), x.cpu() @ x.cpu())


def test_threads() -> None:
    x = torch.randn(32, 32, device="npu")
    expected = torch.softmax(x.cpu(), -1)
    results: list[bool] = []

    def work() -> None:
        for _ in range(20):
            results.append(torch.allclose(torch.softmax(x, -1).cpu(), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_printing() -> None:
    x = torch.arange(6.0).reshape(2, 3).to("npu")
    assert repr(x) == "tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='npu:0')"
    assert "..." in repr(torch.zeros(2000, device="npu"))


def test_autocast_sees_npu_operators_only() -> None:
    """torch_npu's operators get bfloat16; the CPU kernels behind them must not be cast a second time."""
    x, w = torch.randn(4, 8, device="npu"), torch.randn(8, 8, device="npu")
    with torch.autocast("npu", torch.bfloat16):
        assert (x @ w).dtype is torch.bfloat16
        assert torch.softmax(x, -1).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.baddbmm(x[None], x[None], w[None])
    torch.testing.assert_close(y.cpu(), torch.baddbmm(x.cpu()[None], x.cpu()[None], w.cpu()[None]))


def test_no_grad_modes() -> None:
    x = torch.randn(3, 4, device="npu")
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert torch.equal(torch.exp(x).cpu(), torch.exp(x.cpu()))


@pytest.mark.parametrize("foreach", [False, True])
def test_gradient_clipping_and_adamw(foreach: bool) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=foreach)
        x = torch.linspace(-1, 1, 32).reshape(4, 8).to(device)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    with virtual_npu.record() as calls:
        got = run("npu")
    assert any(name.startswith("aclnnForeach") for name in calls.names) == foreach
    torch.testing.assert_close(got, run("cpu"), rtol=1e-4, atol=1e-5)
