"""Real models, their weights made from configurations: equal to eager at every training step, routed as expected."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import thunder
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import thunder_npu

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import bert
import litgpt_models
import llama_rope
import trocr
from _common import Workload, placed, train_beside_eager

F32, BF16 = torch.float32, torch.bfloat16
WORKLOADS = {
    "bert": bert.workload,
    "trocr": trocr.workload,
    "llama": llama_rope.workload,
    **{f"litgpt {name}": (lambda name=name: litgpt_models.workload(name)) for name in litgpt_models.NAMES},
}
# Two layers of attention over rows as wide as the sequence, a cross-entropy over the vocabulary.
NARROW_ATTENTION = {"triton_ascend_softmax": 2, "aclnn_log_softmax": 1}
EXPECTED = {
    **dict.fromkeys(WORKLOADS, NARROW_ATTENTION),
    # Dynamo compiles one layer and calls it twice. Its cross-attention looks at 300 patches.
    "trocr": {"triton_ascend_softmax": 1, "aclnn_softmax": 1, "aclnn_log_softmax": 1},
}


def softmaxes(compiled, trace: str) -> Counter:
    """How often each symbol of the softmax family stands in the final forward or backward traces."""
    rows = [row for row in thunder_npu.explain(compiled).rows if row["trace"] == trace]
    return Counter(row["symbol"] for row in rows if "softmax" in row["symbol"])


def backward_of(symbols: dict[str, int]) -> dict[str, int]:
    return {f"{name}_backward": count for name, count in symbols.items()}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, F32) for name in WORKLOADS), ("bert", BF16), ("litgpt Gemma-2", BF16)]
)
def test_training(name, dtype):
    compiled = train_beside_eager(WORKLOADS[name](), dtype=dtype).compiled
    assert softmaxes(compiled, "forward") == EXPECTED[name]
    assert softmaxes(compiled, "backward") == backward_of(EXPECTED[name])


def test_rows_of_attention_wider_than_the_bound():
    compiled = train_beside_eager(bert.workload(sequence=264), steps=1).compiled
    expected = {"aclnn_softmax": 2, "aclnn_log_softmax": 1}
    assert softmaxes(compiled, "forward") == expected
    assert softmaxes(compiled, "backward") == backward_of(expected)


def test_attention_of_pytorch():
    """scaled_dot_product_attention with a padding mask, which Thunder decomposes in training."""
    compiled = train_beside_eager(bert.workload(attention="sdpa")).compiled
    forward = softmaxes(compiled, "forward")
    assert forward.pop("aclnn_log_softmax") == 1
    (symbol,) = forward
    assert symbol in ("triton_ascend_softmax", "triton_ascend_safe_softmax")
    assert softmaxes(compiled, "backward") == {f"{symbol}_backward": 2, "aclnn_log_softmax_backward": 1}


def test_rotary_embedding_has_no_cat_of_copies():
    compiled = train_beside_eager(llama_rope.workload(), steps=1).compiled
    acquired, final = thunder.last_traces(compiled)[0], thunder.last_traces(compiled)[-1]

    def cats(trace):
        return [[t.name for t in b.args[0]] for b in trace.bound_symbols if b.sym.name == "cat"]

    assert any(len(set(names)) < len(names) for names in cats(acquired))
    assert len(cats(final)) == 4  # rotate_half's cat((-x2, x1)) of query and key, in two layers
    assert all(len(set(names)) == len(names) for names in cats(final))
    (done,) = [r for r in thunder_npu.explain(compiled).rewrites if r["transform"] == "RepeatCat" and r["done"]]
    assert "modeling_llama.py" in done["line"]


# ---------------------------------------------------------------- other ways to run them


class Checkpointed(nn.Module):
    """A layer whose activations are recomputed in the backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args):
        return checkpoint(self.layer, *args, use_reentrant=False)


def checkpointed_bert() -> Workload:
    workload = bert.workload()
    workload.model.bert.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return workload


def checkpointed_litgpt() -> Workload:
    workload = litgpt_models.workload("Llama-3.2")
    layers = workload.model.gpt.transformer.h
    layers[:] = [Checkpointed(layer) for layer in layers]
    return workload


@pytest.mark.parametrize("workload", [checkpointed_bert, checkpointed_litgpt])
def test_activation_checkpointing(workload):
    compiled = train_beside_eager(workload()).compiled
    assert softmaxes(compiled, "forward") == NARROW_ATTENTION
    recomputed = {"triton_ascend_softmax": 2}
    assert softmaxes(compiled, "backward") == {**recomputed, **backward_of(NARROW_ATTENTION)}


@pytest.mark.parametrize("name", ["bert", "litgpt Llama-3.2"])
def test_plugin(name):
    workload = WORKLOADS[name]()
    workload.compile = lambda model: thunder.compile(model, plugins=thunder_npu.NPU())
    compiled = train_beside_eager(workload, steps=1).compiled
    assert softmaxes(compiled, "forward") == EXPECTED[name]
    assert softmaxes(compiled, "backward") == backward_of(EXPECTED[name])


class NextToken(nn.Module):
    """The probabilities of the next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch)[0][:, -1].softmax(-1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["bert", "litgpt Mistral"])
def test_probabilities_over_the_vocabulary(name, mode):
    workload = WORKLOADS[name]()
    model = NextToken(workload.model).eval()
    batch = placed(workload.batch, "cpu", F32)
    compiled = workload.compile(model)
    with mode():
        probabilities = compiled(**batch)
        torch.testing.assert_close(probabilities, model(**batch))
    assert not probabilities.requires_grad
    assert softmaxes(compiled, "forward")["aclnn_softmax"] == 1
    assert not softmaxes(compiled, "backward")
