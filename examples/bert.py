"""BertForMaskedLM of transformers through thunder.dynamo.thunderfx.

Attention's rows are as wide as the sequence, narrow, and go to Triton; the cross-entropy's log_softmax over the
vocabulary goes to aclnn.
"""

from __future__ import annotations

import torch
from _common import Workload, main
from thunder.dynamo import thunderfx
from torch import nn
from transformers import BertConfig, BertForMaskedLM

import thunder_npu


class MaskedLM(nn.Module):
    """BertForMaskedLM, with a tuple for its result."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertForMaskedLM(config)

    def forward(self, input_ids, attention_mask, labels):
        out = self.bert(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        return out.logits, out.loss


def compile(model: nn.Module):
    return thunderfx(model, executors=[thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex])


def workload(sequence: int = 24, attention: str = "eager") -> Workload:
    """BERT's own vocabulary and head width, fewer and smaller layers. The second sentence is padded."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    ids = torch.randint(config.vocab_size, (2, sequence))
    mask = torch.ones_like(ids)
    mask[1, sequence * 2 // 3 :] = 0
    labels = torch.where((torch.rand(ids.shape) < 0.3) & (mask == 1), ids, -100)  # -100: not part of the loss
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return Workload("BertForMaskedLM", MaskedLM(config), batch, compile)


if __name__ == "__main__":
    main(__doc__, lambda: [workload()])
