"""thunderfx on npu tensors: attention reaches aclnn; what Thunder does not take runs in eager, as the report says."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from thunder.dynamo import thunderfx

import thunder_npu
from tests.traces import EXECUTORS
from thunder_npu import virtual_npu


def attended(q, k, v):
    return torch.sinc(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_attention_is_claimed_and_the_rest_runs_in_eager():
    torch.compiler.reset()
    inputs = [torch.randn(1, 2, 8, 16).half().npu().requires_grad_() for _ in range(3)]
    compiled = thunderfx(attended, executors=EXECUTORS)
    got, want = compiled(*inputs), attended(*inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    cotangent = torch.ones_like(want)
    with virtual_npu.record() as calls:
        ours = torch.autograd.grad(got, inputs, cotangent)
        torch.npu.synchronize()
    assert [call.name for call in calls].count("aclnnFlashAttentionScoreGrad") == 1
    for g, w in zip(ours, torch.autograd.grad(want, inputs, cotangent), strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0)
    report = thunder_npu.explain(compiled)
    assert [row["symbol"] for row in report.rows if row["trace"] == "forward"] == ["aclnn_attention"]
    (note,) = report.notes
    assert note.startswith("graph 0: 1 operators of inductor_1 run by eager PyTorch, since")
    assert "sinc" in note
