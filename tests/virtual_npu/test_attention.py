"""scaled_dot_product_attention on npu tensors: the operator that eager launches, with eager's numbers."""

from __future__ import annotations

import pytest
import thunder
import torch
import torch.nn.functional as F

import thunder_npu
from tests.traces import backward_symbols, forward_symbols, jit
from thunder_npu import virtual_npu

B, N, L, S, D = 2, 3, 12, 20, 16


def tensors(*shapes, dtype=torch.float16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).npu().requires_grad_() for shape in shapes]


def attended(dtype=torch.float16, dim=D, value_dim=None):
    return tensors((B, N, L, dim), (B, N, S, dim), (B, N, S, value_dim or dim), dtype=dtype)


def mask(*shape, dead_rows=False):
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    if dead_rows and shape[-2] > 1:
        keep[..., 0, :] = False
    return keep.npu()


def step(function, inputs):
    """Result, gradients and the operators launched, of a training step from fresh gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    torch.npu.synchronize()
    torch.manual_seed(7)
    with virtual_npu.record() as calls:
        out = function(*leaves)
        out.backward(torch.ones_like(out))
        torch.npu.synchronize()
    return [out.detach(), *(t.grad for t in leaves)], [call.name for call in calls]


def check(inputs, **arguments):
    """Ours launches eager's flash operators, no more operators than eager, and gives exactly its numbers."""

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **arguments)

    want, eager = step(f, inputs)
    jitted = jit(f)
    got, _ = step(jitted, inputs)
    again, ours = step(jitted, inputs)
    for g, a, w in zip(got, again, want, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(a, w, rtol=0, atol=0, equal_nan=True)
    assert forward_symbols(jitted).count("aclnn_attention") == 1
    assert backward_symbols(jitted).count("aclnn_attention_backward") == 1
    flash = [name for name in eager if "FlashAttention" in name]
    assert flash == ["aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad"]
    assert [name for name in ours if "FlashAttention" in name] == flash
    assert len(ours) <= len(eager)
    return jitted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_dtypes(dtype, causal):
    check(attended(dtype), is_causal=causal)


@pytest.mark.parametrize(
    "shape",
    [(L, S), (1, S), (L, 1), (1, 1, L, S), (B, 1, L, S), (1, N, L, S), (B, N, L, S), (B, 1, 1, S), (B, N, 1, S)],
    ids=str,
)
def test_bool_masks(shape):
    check(attended(), attn_mask=mask(*shape))


def test_rows_that_see_nothing():
    check(attended(), attn_mask=mask(L, S, dead_rows=True))


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_draws_what_eager_draws(causal):
    check(attended(), dropout_p=0.3, is_causal=causal)
    check(attended(), dropout_p=0.3, attn_mask=mask(L, S))


@pytest.mark.parametrize("dim", [1, 7, 40, 128, 512])
def test_heads(dim):
    check(attended(dim=dim))


def test_scale_and_narrow_values():
    check(attended(), scale=0.3)
    check(attended(value_dim=8))


def test_strided_and_expanded_inputs():
    q, k, v = tensors((B, L, N, D), (B, S, 1, D), (B, S, 1, D))
    check([q.detach().transpose(1, 2), *(t.detach().transpose(1, 2).expand(B, N, S, D) for t in (k, v))])


def test_grouped_queries():
    q, k, v = tensors((B, 4, L, D), (B, 2, S, D), (B, 2, S, D))

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    want, _ = step(f, (q, k, v))
    jitted = jit(f)
    got, ours = step(jitted, (q, k, v))
    assert "aclnn_attention" in forward_symbols(jitted)
    assert "aclnnFlashAttentionScoreGrad" in ours
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=2e-3, atol=2e-3)


def test_nothing_of_the_size_of_the_scores_is_saved():
    inputs = tensors((1, 2, 128, 64), (1, 2, 128, 64), (1, 2, 128, 64))
    jitted = jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    step(jitted, inputs)
    saved = thunder.last_traces(jitted)[-1].output[1][0]
    assert sum(t.numel * t.dtype.bytes for t in saved) <= 4 * 2 * 128 * 64 * 2 + 2 * 2 * 128 * 8 * 4 + 16


@pytest.mark.parametrize(
    ("inputs", "arguments", "reason"),
    [
        (lambda: attended(), {"attn_mask": lambda: torch.zeros(L, S, dtype=torch.float16).npu()}, "is added"),
        (lambda: attended(dim=513), {}, "at most 512"),
        (lambda: tensors((B, L, D), (B, S, D), (B, S, D)), {}, "has 3 axes"),
        (lambda: attended(), {"attn_mask": lambda: mask(S)}, "2 or 4 axes"),
    ],
)
def test_what_eager_does_not_fuse_is_left(inputs, arguments, reason):
    given = {name: value() for name, value in arguments.items()}
    leaves = inputs()

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **given)

    jitted = jit(f)
    want, _ = step(f, leaves)
    got, _ = step(jitted, leaves)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=4e-3, atol=4e-3)
    assert "aclnn_attention" not in forward_symbols(jitted)
    with torch.no_grad():
        jitted(*leaves)
    assert any(reason in row["reason"] for row in thunder_npu.explain(jitted).rows if row["op"] == "attention")
