"""The record of calls: order, arguments, nesting, counters, the summary, the Chrome trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from thunder_npu import virtual_npu
from thunder_npu.virtual_npu import AclnnCall, TensorArg, TritonLaunch
from thunder_npu.virtual_npu.recording import note_triton_launch


def test_calls_in_order_with_their_arguments() -> None:
    x = torch.randn(4, 8, device="npu")
    with virtual_npu.record() as calls:
        y = torch.softmax(x, -1)
        torch.cat([y, y], 1)
        y.masked_fill_(y > 1, float("-inf"))
    assert calls.names == ["aclnnSoftmax", "aclnnCat", "aclnnGtScalar", "aclnnInplaceMaskedFillScalar"]
    tile = TensorArg("float32", (4, 8))
    softmax, cat, _, fill = calls
    assert isinstance(softmax, AclnnCall)
    assert softmax.args == (tile, -1, tile)
    assert isinstance(cat, AclnnCall)
    assert cat.args == ((tile, tile), 1, TensorArg("float32", (4, 16)))
    assert isinstance(fill, AclnnCall)
    assert fill.args == (tile, TensorArg("bool", (4, 8)), float("-inf"))
    assert str(softmax) == "aclnnSoftmax(float32[4, 8], -1, float32[4, 8])"
    assert all(call.start_ns <= call.end_ns for call in calls)


def test_triton_launches_take_their_place() -> None:
    import time

    x = torch.randn(4, device="npu")
    with virtual_npu.record() as calls:
        torch.exp(x)
        start = time.monotonic_ns()
        note_triton_launch("kernel", (48, 1, 1), 4096, start, time.monotonic_ns())
        torch.sin(x)
    assert calls.names == ["aclnnExp", "kernel", "aclnnSin"]
    launch = calls[1]
    assert isinstance(launch, TritonLaunch)
    assert str(launch) == "kernel[48, 1, 1], 4096 B of unified buffer"


def test_live_nested_and_fixed_afterwards() -> None:
    x = torch.randn(4, device="npu")
    with virtual_npu.record() as outer:
        torch.exp(x)
        assert outer.names == ["aclnnExp"]
        with virtual_npu.record() as inner:
            torch.sin(x)
        torch.cos(x)
    torch.tanh(x)
    assert inner.names == ["aclnnSin"]
    assert outer.names == ["aclnnExp", "aclnnSin", "aclnnCos"]
    assert len(outer[1:]) == 2


def test_calls_of_the_backward_thread() -> None:
    x = torch.randn(4, 8, device="npu", requires_grad=True)
    with virtual_npu.record() as calls:
        torch.log_softmax(x, -1)[:, 0].sum().backward()
    assert calls.names.index("aclnnLogSoftmax") < calls.names.index("aclnnLogSoftmaxBackward")


def test_an_exception_ends_the_recording() -> None:
    x = torch.ones(2, device="npu")
    with pytest.raises(RuntimeError, match="not emulated"), virtual_npu.record() as calls:
        torch.linalg.svd(torch.exp(x).reshape(1, 2))
    assert "aclnnExp" in calls.names
    with virtual_npu.record() as later:
        torch.sin(x)
    assert later.names == ["aclnnSin"]


def test_counters_and_summary() -> None:
    x = torch.randn(4, device="npu")
    virtual_npu.reset_counters()
    for _ in range(3):
        torch.exp(x)
    note_triton_launch("kernel", (1, 1, 1), None, 0, 1)
    assert virtual_npu.counters() == {"aclnnExp": 3, "kernel": 1}
    lines = [line for line in virtual_npu.summary().splitlines() if "aclnnExp" in line or "kernel" in line]
    assert ["aclnn" in lines[0], "3" in lines[0], "Triton" in lines[1]] == [True, True, True]
    virtual_npu.reset_counters()
    assert virtual_npu.counters() == {}


def test_chrome_trace(tmp_path: Path) -> None:
    with virtual_npu.record() as calls:
        torch.exp(torch.ones(2, device="npu"))
        note_triton_launch("kernel", (1, 1, 1), None, 2_000, 5_000)
    calls.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert spans["aclnnExp"]["tid"] == rows["aclnn"]
    assert spans["kernel"]["tid"] == rows["Triton"]
    assert (spans["kernel"]["ts"], spans["kernel"]["dur"]) == (2.0, 3.0)
    assert spans["aclnnExp"]["args"]["call"].startswith("aclnnExp(float32[2]")
