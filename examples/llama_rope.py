"""LlamaForCausalLM of transformers through thunder.jit; cat((freqs, freqs), -1) of its rotary embedding is rewritten.

thunder.jit needs the 4-D additive mask and the position_ids that transformers would otherwise make by itself.
"""

from __future__ import annotations

import thunder
import torch
from _common import Workload, main, next_token_loss
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_npu


class CausalLM(nn.Module):
    """LlamaForCausalLM and its loss: each position predicts the next token."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config)

    def forward(self, input_ids, attention_mask, position_ids):
        out = self.llama(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False)
        return out.logits, next_token_loss(out.logits, input_ids)


def compile(model: nn.Module):
    return thunder.jit(model, executors=[thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex])


def workload(sequence: int = 20) -> Workload:
    """Grouped-query attention (two heads share a key), a vocabulary of 50257."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50257,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        attn_implementation="eager",
        use_cache=False,
    )
    ids = torch.randint(config.vocab_size, (2, sequence))
    mask = torch.full((sequence, sequence), torch.finfo(torch.bfloat16).min).triu(1).expand(2, 1, -1, -1)
    positions = torch.arange(sequence).expand(2, -1)
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    return Workload("LlamaForCausalLM", CausalLM(config), batch, compile)


if __name__ == "__main__":
    main(__doc__, lambda: [workload()])
