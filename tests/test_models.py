"""Real models, their weights made from configurations: equal to eager at every training step, routed as expected."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache, partial
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
from _common import Workload, next_token_loss, placed, train_beside_eager

pytestmark = pytest.mark.slow

F32, BF16 = torch.float32, torch.bfloat16
WORKLOADS = {
    "bert": bert.workload,
    "trocr": trocr.workload,
    "llama": llama_rope.workload,
    **{f"litgpt {name}": partial(litgpt_models.workload, name) for name in litgpt_models.NAMES},
}
# Two layers of attention over rows as wide as the sequence, a cross-entropy over the vocabulary.
NARROW_ATTENTION = {"triton_ascend_softmax": 2, "aclnn_log_softmax": 1}
EXPECTED = {
    **dict.fromkeys(WORKLOADS, NARROW_ATTENTION),
    # Dynamo compiles one layer and calls it twice. Its cross-attention looks at 300 patches.
    "trocr": {"triton_ascend_softmax": 1, "aclnn_softmax": 1, "aclnn_log_softmax": 1},
    # A sliding window: the mask is one that Thunder cannot tell to leave something in every row.
    "litgpt Mistral": {"triton_ascend_safe_softmax": 2, "aclnn_log_softmax": 1},
}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """thunderfx stops compiling a function that TorchDynamo has compiled too often before, for other tests."""
    torch.compiler.reset()


def softmaxes(compiled, trace: str) -> Counter:
    """How often each symbol of the softmax family stands in the final forward or backward traces, fused or not."""
    symbols = [row["symbol"].split(": ")[-1] for row in thunder_npu.explain(compiled).rows if row["trace"] == trace]
    return Counter(symbol for symbol in symbols if "softmax" in symbol)


def check_routes(compiled, expected: dict[str, int], recomputed: dict[str, int] | None = None) -> None:
    """The forward has the expected symbols, the backward the backward symbol of each.

    A fused region of the backward may recompute a softmax from its saved inputs; `recomputed` must be there.
    """
    assert softmaxes(compiled, "forward") == expected
    backward = softmaxes(compiled, "backward")
    again = {name: backward.pop(name) for name in expected if name in backward}
    assert backward == {f"{name}_backward": count for name, count in expected.items()}
    assert all(again[name] == count for name, count in (recomputed or {}).items())


@cache
def trained(name: str, dtype: torch.dtype = F32):
    return train_beside_eager(WORKLOADS[name](), dtype=dtype).compiled


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, F32) for name in WORKLOADS), ("bert", BF16), ("litgpt Gemma-2", BF16)], ids=str
)
def test_training(name, dtype):
    check_routes(trained(name, dtype), EXPECTED[name])


def test_rows_of_attention_wider_than_the_bound():
    compiled = train_beside_eager(bert.workload(sequence=264), steps=1).compiled
    check_routes(compiled, {"aclnn_softmax": 2, "aclnn_log_softmax": 1})


def test_attention_of_pytorch():
    """scaled_dot_product_attention with a padding mask, which Thunder decomposes in training: its rows may be dead."""
    compiled = train_beside_eager(bert.workload(attention="sdpa")).compiled
    check_routes(compiled, {"triton_ascend_safe_softmax": 2, "aclnn_log_softmax": 1})


def test_rotary_embedding_has_no_cat_of_copies():
    compiled = trained("llama")
    cats = [b for b in thunder.last_traces(compiled)[-1].bound_symbols if b.sym.name == "cat"]
    assert len(cats) == 4  # rotate_half's cat((-x2, x1)) of query and key, in two layers
    assert all(first.name != second.name for first, second in (b.args[0] for b in cats))
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
    for i, layer in enumerate(layers):
        layers[i] = Checkpointed(layer)
    return workload


@pytest.mark.parametrize("workload", [checkpointed_bert, checkpointed_litgpt])
def test_activation_checkpointing(workload):
    compiled = train_beside_eager(workload(), steps=1).compiled
    check_routes(compiled, NARROW_ATTENTION, recomputed={"triton_ascend_softmax": 2})


def test_plugin():
    """thunder.compile of a model of transformers, for which Thunder has a recipe of its own."""

    def compile(module):
        llama = thunder.compile(module.llama, plugins=thunder_npu.NPU())

        def call(**batch):
            logits = llama(**batch, use_cache=False).logits
            return logits, next_token_loss(logits, batch["input_ids"])

        call.llama = llama
        return call

    workload = llama_rope.workload()
    workload.compile = compile
    check_routes(train_beside_eager(workload, steps=1).compiled.llama, {"triton_ascend_softmax": 2})


class NextToken(nn.Module):
    """The probabilities of the next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch)[0][:, -1].softmax(-1)


@pytest.mark.parametrize(("name", "mode"), [("bert", torch.no_grad), ("llama", torch.inference_mode)])
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
