"""TrOCRForCausalLM of transformers, the text decoder of TrOCR, through thunder.dynamo.thunderfx.

Causal self-attention, cross-attention to image patches, and a cross-entropy over a vocabulary of 50257.
"""

from __future__ import annotations

import torch
from _common import Workload, main, next_token_loss
from thunder.dynamo import thunderfx
from torch import nn
from transformers import TrOCRConfig, TrOCRForCausalLM

import thunder_npu


class Decoder(nn.Module):
    """TrOCRForCausalLM and its loss: each position predicts the next token."""

    def __init__(self, config: TrOCRConfig) -> None:
        super().__init__()
        self.trocr = TrOCRForCausalLM(config)

    def forward(self, input_ids, encoder_hidden_states):
        out = self.trocr(input_ids=input_ids, encoder_hidden_states=encoder_hidden_states, use_cache=False)
        return out.logits, next_token_loss(out.logits, input_ids)


def compile(model: nn.Module):
    return thunderfx(model, executors=[thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex])


def workload(sequence: int = 16, patches: int = 300) -> Workload:
    """`patches` above 256 makes the rows of the cross-attention wide."""
    torch.manual_seed(0)
    config = TrOCRConfig(
        vocab_size=50257,
        d_model=64,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=128,
        cross_attention_hidden_size=48,
        max_position_embeddings=64,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        use_cache=False,
    )
    ids = torch.randint(config.vocab_size, (2, sequence))
    batch = {"input_ids": ids, "encoder_hidden_states": torch.randn(2, patches, config.cross_attention_hidden_size)}
    return Workload("TrOCRForCausalLM", Decoder(config), batch, compile)


if __name__ == "__main__":
    main(__doc__, lambda: [workload()])
