"""Training BERT and Llama on an npu: equal to eager on the npu, by Triton kernels and aclnn operators."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import bert
import llama_rope
from _common import placed, train_beside_eager

import thunder_npu
from thunder_npu.virtual_npu import TritonLaunch, record


@pytest.mark.parametrize(("module", "dtype"), [(bert, torch.float32), (llama_rope, torch.bfloat16)], ids=str)
def test_training_on_the_npu(module, dtype):
    workload = module.workload()
    compiled = train_beside_eager(workload, "npu", dtype).compiled
    rows = [row for row in thunder_npu.explain(compiled).rows if "softmax" in row["symbol"]]
    assert {(row["executor"], row["path"]) for row in rows} == {("aclnn", "device"), ("triton_ascend", "device")}
    assert {row["device"] for row in rows} == {"npu:0"}

    with record() as calls:
        _, loss = compiled(**placed(workload.batch, "npu", dtype))
        loss.backward()
    launches = [call for call in calls if isinstance(call, TritonLaunch)]
    assert len(launches) >= 4  # attention of two layers, forward and backward
    names = [call.name for call in calls]
    assert (names.count("aclnnLogSoftmax"), names.count("aclnnLogSoftmaxBackward")) == (1, 1)
    assert "aclnnSoftmax" not in names
