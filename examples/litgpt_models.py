"""Llama 3.2, Mistral and Gemma 2 of litgpt through thunder.jit, shrunk but for the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import thunder
import torch
from _common import Workload, main, next_token_loss
from litgpt import GPT, Config
from torch import nn

import thunder_npu

# The configuration of litgpt that each model shrinks, and what it keeps of it besides the architecture.
NAMES = {"Llama-3.2": "Llama-3.2-1B", "Mistral": "Mistral-7B-v0.1", "Gemma-2": "Gemma-2-2b"}
VOCABULARY = 50257


class CausalLM(nn.Module):
    """litgpt's GPT and its loss: each position predicts the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gpt = GPT(config)

    def forward(self, idx):
        logits = self.gpt(idx)
        return logits, next_token_loss(logits, idx)


def compile(model: nn.Module):
    return thunder.jit(model, executors=[thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex])


def shrunk(name: str, layers: int = 2) -> Config:
    """litgpt's configuration `name` with `layers` layers of width 64.

    Rotary embedding, grouped queries, soft-cap, sliding window and normalisations stay as they are.
    """
    return Config.from_name(
        NAMES[name],
        n_layer=layers,
        n_embd=64,
        n_head=4,
        n_query_groups=2,
        head_size=16,
        intermediate_size=128,
        block_size=64,
        vocab_size=VOCABULARY,
        padded_vocab_size=VOCABULARY,
    )


def workload(name: str, sequence: int = 24) -> Workload:
    torch.manual_seed(0)
    model = CausalLM(shrunk(name))
    return Workload(f"litgpt {name}", model, {"idx": torch.randint(VOCABULARY, (2, sequence))}, compile)


def workloads() -> Iterator[Workload]:
    return map(workload, NAMES)


if __name__ == "__main__":
    main(__doc__, workloads)
