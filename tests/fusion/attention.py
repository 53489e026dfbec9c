"""One attention of each of six models, small, with eager attention: what the fusion tests trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

if "npu" not in vars(torch):
    # transformers imports torch_npu wherever it is installed, and that fails as a whole without CANN.
    sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]

import transformers
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.trocr.modeling_trocr import TrOCRAttention

BATCH, LENGTH, HIDDEN, HEADS = 2, 40, 32, 4


class Attention(NamedTuple):
    module: nn.Module
    call: Callable[..., torch.Tensor]  # of the module (jitted or not) and `inputs`
    inputs: tuple[torch.Tensor, ...]  # the first requires a gradient


def _hidden() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, HIDDEN)


def _padding() -> torch.Tensor:
    mask = torch.zeros(BATCH, 1, 1, LENGTH)
    mask[1, ..., 30:] = torch.finfo(torch.float32).min
    return mask


def _causal() -> torch.Tensor:
    return torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1).expand(BATCH, 1, -1, -1).contiguous()


def bert(dropout: float) -> Attention:
    config = transformers.BertConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, attention_probs_dropout_prob=dropout, attn_implementation="eager"
    )
    module = BertSelfAttention(config)
    return Attention(module, lambda m, x, mask: m(x, attention_mask=mask)[0], (_hidden(), _padding()))


def gpt2(dropout: float) -> Attention:
    config = transformers.GPT2Config(
        n_embd=HIDDEN, n_head=HEADS, attn_pdrop=dropout, resid_pdrop=0.0, attn_implementation="eager"
    )
    module = GPT2Attention(config)
    mask = _padding().expand(BATCH, 1, LENGTH, LENGTH).contiguous()
    return Attention(module, lambda m, x, mask: m(x, attention_mask=mask)[0], (_hidden(), mask))


def t5(dropout: float) -> Attention:
    config = transformers.T5Config(d_model=HIDDEN, d_kv=HIDDEN // HEADS, num_heads=HEADS, dropout_rate=dropout)
    module = T5Attention(config, has_relative_attention_bias=True)

    def call(m: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return m(x, mask=mask, cache_position=torch.arange(LENGTH, device=x.device))[0]

    return Attention(module, call, (_hidden(), _padding()))


def _rotary(cls: type, config: Any) -> Attention:
    config._attn_implementation = "eager"
    cos, sin = LlamaRotaryEmbedding(config)(_hidden(), torch.arange(LENGTH)[None])

    def call(m: Any, x: torch.Tensor, mask: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return m(x, position_embeddings=(cos, sin), attention_mask=mask)[0]

    return Attention(cls(config, 0), call, (_hidden(), _causal(), cos.detach(), sin.detach()))


def llama(dropout: float) -> Attention:
    return _rotary(
        LlamaAttention,
        transformers.LlamaConfig(
            hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=2, attention_dropout=dropout
        ),
    )


def gemma2(dropout: float) -> Attention:
    config = transformers.Gemma2Config(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=HIDDEN // HEADS,
        attention_dropout=dropout,
    )  # fmt: skip
    return _rotary(Gemma2Attention, config)


def trocr(dropout: float) -> Attention:
    config = transformers.TrOCRConfig(d_model=HIDDEN, decoder_attention_heads=HEADS, attention_dropout=dropout)
    module = TrOCRAttention(config, embed_dim=HIDDEN, num_heads=HEADS, dropout=dropout, is_decoder=True)
    return Attention(module, lambda m, x, mask: m(x, attention_mask=mask)[0], (_hidden(), _causal()))


MODELS: dict[str, Callable[[float], Attention]] = {
    f.__name__: f for f in (bert, gpt2, t5, llama, gemma2, trocr)
}  # fmt: skip


def between_products(symbols: list[str]) -> list[list[str]]:
    """What stands between one matmul and the next, for those gaps of a trace that hold a softmax or a fused region."""
    gaps: list[list[str]] = [[]]
    for name in symbols:
        if name in ("matmul", "bmm"):
            gaps.append([])
        else:
            gaps[-1].append(name)
    return [gap for gap in gaps if any("softmax" in name or "TritonAscend" in name for name in gap)]
