"""Plain PyTorch training, no Thunder, of small models on npu:0: losses equal to the CPU's within 1e-4 relative."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers as hf

from thunder_npu import virtual_npu

STEPS = 20
VOCABULARY = 512


def _bert() -> torch.nn.Module:
    return hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _gpt2() -> torch.nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, loss_type="ForCausalLMLoss",
        )
    )  # fmt: skip


def _llama() -> torch.nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
        )
    )  # fmt: skip


def _t5() -> torch.nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )  # fmt: skip


def _vit() -> torch.nn.Module:
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32,
            patch_size=8, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _trocr() -> torch.nn.Module:
    return hf.TrOCRForCausalLM(
        hf.TrOCRConfig(
            vocab_size=VOCABULARY, d_model=64, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=128,
            max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, use_cache=False,
            is_decoder=True, cross_attention_hidden_size=64,
        )
    )  # fmt: skip


def _text(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, VOCABULARY, (4, 16), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 12:] = 0
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": mask}


def _image(generator: torch.Generator) -> dict[str, torch.Tensor]:
    pixels = torch.randn(4, 3, 32, 32, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, 10, (4,), generator=generator)}


MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (_bert, _text),
    "gpt2": (_gpt2, _text),
    "llama": (_llama, _text),
    "t5": (_t5, _text),
    "trocr": (_trocr, _text),
    "vit": (_vit, _image),
}


def _losses(name: str, device: str, foreach: bool) -> list[float]:
    build, batch = MODELS[name]
    torch.manual_seed(0)
    model = build().to(device).train()
    # A larger epsilon than the default, or rounding decides the sign of AdamW's first steps where a gradient is zero.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5, foreach=foreach)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        inputs = {key: value.to(device) for key, value in batch(generator).items()}
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", sorted(MODELS))
def test_twenty_training_steps(name: str) -> None:
    foreach = name in ("gpt2", "vit")
    expected = _losses(name, "cpu", foreach)
    with virtual_npu.leak_check(), virtual_npu.record() as calls:
        got = _losses(name, "npu:0", foreach)
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(expected, got, strict=True)), (expected, got)
    assert len(set(expected)) == STEPS
    assert {"aclnnReduceSum", "aclnnLogSoftmax", "aclnnNLLLossBackward"} <= set(calls.names)
    assert ("aclnnForeachLerpScalar" in calls.names) == foreach


def test_mixed_precision_with_a_gradient_scaler() -> None:
    """Autocast to float16 with GradScaler: the losses follow the CPU's autocast run, and fall."""

    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(32, 16, generator=generator).to(device)
        y = torch.randint(0, 10, (32,), generator=generator).to(device)
        seen = []
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append(loss.item())
        return seen

    with virtual_npu.record() as calls:
        got = losses("npu")
    torch.testing.assert_close(torch.tensor(got), torch.tensor(losses("cpu")), rtol=1e-2, atol=1e-2)
    assert got[-1] < got[0]
    assert {"aclnnForeachNonFiniteCheckAndUnscale", "aclnnAmpUpdateScale"} <= set(calls.names)
