"""An operator that fails, memory that runs out, a lost device, one that is not there: errors, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from thunder_npu import virtual_npu


@pytest.fixture(autouse=True)
def healthy_afterwards() -> Iterator[None]:
    before = virtual_npu.memory().limit
    yield
    virtual_npu.clear_faults()
    virtual_npu.reset_device()
    virtual_npu.set_memory_limit(before)
    assert torch.equal((torch.ones(3, device="npu") + 1).cpu(), torch.full((3,), 2.0))


def test_operator_fails_once() -> None:
    x = torch.randn(4, 8, device="npu")
    virtual_npu.inject_fault("aclnnSoftmax", times=1)
    with pytest.raises(RuntimeError, match=r"(?s)aclnnSoftmax failed, error code is 507015.*fault injected"):
        torch.softmax(x, -1)
    torch.testing.assert_close(torch.softmax(x, -1).cpu(), torch.softmax(x.cpu(), -1))


def test_operator_fails_until_cleared() -> None:
    x = torch.randn(4, device="npu")
    virtual_npu.inject_fault("aclnnExp")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="507015"):
            torch.exp(x)
        torch.sin(x)
    virtual_npu.clear_faults()
    torch.exp(x)


def test_failed_operator_is_not_counted_or_recorded() -> None:
    x = torch.randn(4, device="npu")
    virtual_npu.reset_counters()
    virtual_npu.inject_fault("aclnnExp", times=1)
    with virtual_npu.record() as calls, pytest.raises(RuntimeError):
        torch.exp(x)
    assert "aclnnExp" not in calls.names
    assert "aclnnExp" not in virtual_npu.counters()


def test_fault_in_backward_reaches_the_caller() -> None:
    x = torch.randn(4, 8, device="npu", requires_grad=True)
    y = torch.softmax(x, -1).sum()
    virtual_npu.inject_fault("aclnnSoftmaxBackward", times=1)
    with pytest.raises(RuntimeError, match="aclnnSoftmaxBackward failed"):
        y.backward()


def test_memory_runs_out_by_limit() -> None:
    torch.npu.empty_cache()
    used = virtual_npu.memory().in_use
    virtual_npu.set_memory_limit(used + (64 << 20))
    torch.empty(4 << 20, device="npu")
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(64 << 20, device="npu")
    assert torch.npu.mem_get_info()[1] == used + (64 << 20)


def test_memory_runs_out_by_fault() -> None:
    kept = torch.ones(4, device="npu")
    virtual_npu.inject_fault("memory")
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(64 << 20, device="npu")
    assert (kept + 1).sum().item() == 8  # served from torch_npu's cache


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: x.cpu(),
        lambda x: x.fill_(1).item(),
        lambda x: torch.npu.synchronize(),
        lambda x: torch.npu.Event().record(),
        lambda x: torch.npu.current_stream().synchronize(),
        lambda x: torch.npu.mem_get_info(),
        lambda x: torch.empty(64 << 20, device="npu"),
    ],
)
def test_lost_device(use: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(1, device="npu")
    virtual_npu.inject_fault("device")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?s)507010.*heartbeat"):
            use(x)
    virtual_npu.clear_faults()
    with pytest.raises(RuntimeError, match="507010"):  # lost is lost
        use(x)
    virtual_npu.reset_device()
    use(x)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("aclnnSvd", lambda: torch.linalg.svd(torch.randn(3, 3, device="npu"))),
        ("aclnnFlashAttentionVarLenScore", lambda: _packed_attention()),
    ],
)
def test_what_is_not_emulated_says_so_at_once(name: str, use: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=f"{name} is not emulated"):
        use()
    assert torch.softmax(torch.zeros(2, 4, device="npu"), -1).sum().item() == 2


def _packed_attention() -> object:
    q = torch.randn(8, 2, 8, device="npu")
    return torch.ops.npu.npu_fusion_attention(q, q, q, 2, "TND", actual_seq_qlen=[3, 8], actual_seq_kvlen=[3, 8])


@pytest.mark.parametrize("arguments", [("aclnnNoSuch",), ("aclnnSvd",), ("gravity",), ("aclnnExp", 0), ("memory", -1)])
def test_wrong_fault(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"no such fault|at least 1"):
        virtual_npu.inject_fault(*arguments)  # type: ignore[arg-type]


def test_wrong_device() -> None:
    with pytest.raises(ValueError, match="no device 7"):
        virtual_npu.inject_fault("device", device=7)
    with pytest.raises(ValueError, match="no device 7"):
        virtual_npu.memory(7)


def test_an_error_inside_an_operator_is_its_own_and_the_device_stays_usable() -> None:
    x = torch.randn(5, 6, device="npu")
    with pytest.raises(RuntimeError, match=r"(?s)aclnnGather.*out of bounds"):
        x.gather(1, torch.full((5, 1), 6, device="npu"))
    assert x.gather(1, torch.zeros(5, 1, dtype=torch.long, device="npu")).shape == (5, 1)
