"""Small inputs from public bug reports, with their right values: attention as the files of models write it."""

import copy

import torch
import torch.nn.functional as F
from report import (
    BF16,
    DEV,
    F16,
    F32,
    FMIN,
    INF,
    TOLERANCE,
    R,
    check_dtypes,
    cpu,
    fused,
    grads,
    same,
    softmaxes,
    weights,
)
from torch import nn
from torch.utils.checkpoint import checkpoint


def qkv(queries=5, keys=5, dim=4):
    return R(2, 3, queries, dim, grad=True), *(R(2, 3, keys, dim, seed=s, grad=True) for s in (1, 2))


def test_windows_with_a_gathered_bias(jit):
    """Scores of windows get a bias out of a table, then, viewed with one axis more, a mask of 0 and -100.

    Source: microsoft/Swin-Transformer issues 42, 38, 245; zsyOAOA/ResShift issue 81. Right: equal to eager, the
    gradient of the table too.
    """
    windows, n, heads, dim = 4, 9, 2, 3
    index = (torch.arange(n)[:, None] * 2 + torch.arange(n)[None] * 3) % 25
    area = (torch.arange(windows * n) // 5).view(windows, n)
    mask = torch.where(area[:, None] != area[:, :, None], -100.0, 0.0)
    q, k, v = (R(2 * windows, heads, n, dim, seed=s, grad=True) for s in (1, 2, 3))

    def fn(q, k, v, table, index, mask):
        scores = (q * dim**-0.5) @ k.transpose(-2, -1)
        bias = table[index.view(-1)].view(n, n, heads).permute(2, 0, 1).contiguous()
        scores = (scores + bias[None]).view(2, windows, heads, n, n) + mask[None, :, None]
        return torch.softmax(scores.view(-1, heads, n, n), -1) @ v

    jitted = check_dtypes(jit, fn, q, k, v, R(25, heads, grad=True), index, mask)
    assert softmaxes(jitted) == ["triton_ascend_softmax"]
    assert "add" in fused(jitted)


def test_a_mask_and_a_bias_along_different_axes(jit):
    """Five axes; the mask is 1 wide in heads and queries, the bias in rows of the pair representation.

    Source: dptech-corp/Uni-Core PR 2; hpcaitech/FastFold PR 36. Right: equal to eager, with the bias' gradient summed
    over the axes that it lacks.
    """
    for n in (8, 5, 33):
        x, mask = R(2, 3, 2, n, n, grad=True), (R(2, 3, 1, 1, n, seed=1) > 1.0) * -1e4
        bias = R(2, 1, 2, n, n, seed=2, grad=True)
        jitted = check_dtypes(jit, lambda x, m, b: torch.softmax(x + m + b, -1), x, mask, bias)
        assert softmaxes(jitted) == ["triton_ascend_softmax"]
        assert "add" in fused(jitted)
        mask, bias = R(2, 3, 1, 1, n, seed=3, grad=True), R(1, 1, 2, 1, n, seed=4, grad=True)
        check_dtypes(jit, lambda x, m, b: F.dropout(torch.softmax(x * 0.25 + m + b, -1), 0.0) * 2.0, x, mask, bias)


def test_scale_and_fill_value_are_0d_tensors(jit):
    """GPT-2: a division by a 0-d tensor, where with a 0-d finfo.min and a buffer of booleans, then a padding mask.

    Source: pytorch/pytorch PRs 125562, 121866. Right: equal to eager, in one region.
    """
    q, k, v = qkv(7, 7)
    triangle = torch.ones(16, 16, dtype=torch.bool).tril().view(1, 1, 16, 16)
    padding = torch.zeros(2, 1, 1, 7)
    padding[1, ..., 5:] = -1e4

    def fn(q, k, v, triangle, padding):
        w = q @ k.transpose(-1, -2)
        w = w / torch.full([], v.size(-1) ** 0.5, dtype=w.dtype, device=w.device)
        n, m = q.size(-2), k.size(-2)
        low = torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype, device=w.device)
        w = torch.where(triangle[:, :, m - n : m, :m], w.to(w.dtype), low) + padding
        return torch.softmax(w, dim=-1).type(v.dtype) @ v

    jitted = check_dtypes(jit, fn, q, k, v, triangle, padding)
    assert softmaxes(jitted) == ["triton_ascend_softmax"]
    assert "where" in fused(jitted)


def test_half_scores_and_a_float32_mask(jit):
    """The sum is float32. A mask cast to float16 first would be -inf, and its full row NaN, not uniform.

    Source: pytorch/pytorch issue 195784, PR 196118. Right: finite, equal to eager, in the dtype of q.
    """
    mask = torch.zeros(2, 1, 5, 5)
    mask[:, :, :, 3:] = FMIN
    mask[1, :, 2] = FMIN

    def fn(q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) / 2.0 + mask, -1).to(q.dtype) @ v

    for dtype in (F16, BF16):
        given = (*(t.detach().to(dtype).requires_grad_() for t in qkv()), mask)
        jitted = jit(fn)
        got, want = grads(jitted, given, DEV), grads(fn, given)
        same(got, want, **TOLERANCE[dtype])
        assert got[0].dtype == dtype
        assert torch.isfinite(got[0]).all()
        assert softmaxes(jitted) == ["triton_ascend_softmax"]
        assert "add" in fused(jitted)


def test_attention_in_its_math_form(jit):
    """The root of the scale on both operands, then aten._safe_softmax, whose guard a causal mask does not need.

    Source: pytorch/pytorch PR 185574. Right: equal to eager, with zeros for a padded sequence.
    """
    q, k, v = qkv()
    padding = torch.zeros(2, 1, 1, 5)
    padding[0, ..., 3:] = -INF
    padding[1] = -INF
    root = 4**-0.25

    def padded(q, k, v, m):
        return torch._safe_softmax((q * root) @ (k * root).transpose(-2, -1) + m, -1) @ v

    def causal(q, k, v):
        m = torch.triu(torch.full((5, 5), -INF, device=q.device, dtype=q.dtype), 1)
        return padded(q, k, v, m)

    assert softmaxes(check_dtypes(jit, padded, q, k, v, padding)) == ["triton_ascend_safe_softmax"]
    assert softmaxes(check_dtypes(jit, causal, q, k, v)) == ["triton_ascend_softmax"]


def test_gradients_that_cancel(jit):
    """All weights of a MultiheadAttention equal: uniform rows, so that p·(g − Σpg) cancels.

    Source: pytorch/pytorch issue 152309. Right: equal to eager.
    """
    module = nn.MultiheadAttention(16, 2)
    for p in module.parameters():
        nn.init.constant_(p, 0.1)

    def step(module, compile_):
        x = R(5, 2, 16).to(next(module.parameters()).device).requires_grad_()
        out, p = compile_(module)(x, x, x)
        (out * weights(out)).sum().backward()
        return cpu((out, p, x.grad)), [None if p.grad is None else cpu(p.grad) for p in module.parameters()]

    want = step(copy.deepcopy(module), lambda m: m)
    same(step(module.to(DEV), jit), want, rtol=1e-4, atol=1e-5)


def test_a_mask_filled_in_place_and_joined(jit):
    """full(min), masked_fill_ of the triangle, zeros for the past in front, a window by triu, the padding filled in.

    Source: huggingface/transformers PR 26792. Right: equal to eager.
    """
    x, padding = R(2, 2, 4, 7, grad=True), torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])

    def fn(x, padding):
        n, past, low = 4, 3, torch.finfo(x.dtype).min
        mask = torch.full((n, n), low, device=x.device, dtype=x.dtype)
        i = torch.arange(n, device=x.device)
        mask.masked_fill_(i < (i + 1).view(n, 1), 0)
        mask = torch.cat([torch.zeros(n, past, dtype=x.dtype, device=x.device), mask], dim=-1)
        outside = 1 - torch.triu(torch.ones_like(mask, dtype=torch.int), diagonal=past - 3)
        mask = mask.masked_fill(outside.bool(), low)[None, None].expand(2, 1, n, n + past)
        inverted = 1.0 - padding[:, None, None, :].expand(2, 1, n, n + past).to(x.dtype)
        return torch.softmax(x + mask.masked_fill(inverted.bool(), low), -1)

    jitted = check_dtypes(jit, fn, x, padding)
    assert softmaxes(jitted) == ["triton_ascend_softmax"]
    assert "add" in fused(jitted)


def test_packed_documents(jit):
    """A causal mask in blocks, out of the number of each token's document.

    Source: DeepOpt-com/WrinkleFree-Monorepo issue 53; karpathy/nanoGPT issue 280. Right: equal to eager; no weight
    leaves a document.
    """
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 2]])

    def fn(q, k, v, documents):
        i = torch.arange(9, device=q.device)
        mask = (documents[:, None, :, None] == documents[:, None, None, :]) & (i[None, :] <= i[:, None])
        p = torch.softmax((q @ k.transpose(-1, -2) / 2.0).masked_fill(~mask, -INF), -1)
        return p @ v, p

    jitted = check_dtypes(jit, fn, *qkv(9, 9), documents)
    assert softmaxes(jitted) == ["triton_ascend_softmax"]
    assert "where" in fused(jitted)
    q, k, v = (t.detach().to(DEV) for t in qkv(9, 9))
    p = cpu(jitted(q, k, v, documents.to(DEV))[1])
    other = documents[:, None, :, None] != documents[:, None, None, :]
    assert p[other.expand_as(p)].eq(0).all()


def test_a_bias_with_a_gradient_as_the_mask(jit):
    """attn_mask is a matrix of relative positions, computed from q and partly -inf; then a parameter.

    Source: huggingface/transformers PR 48843. Right: equal to eager, the gradient of the bias too.
    """
    q, k, v = qkv()
    keep = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()[:, None, None, :]

    def fn(q, k, v, positions, keep):
        bias = (q @ positions * 0.5).masked_fill(~keep, -INF)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.5)

    check_dtypes(jit, fn, q, k, v, R(4, 5, seed=7, grad=True), keep)
    bias = R(1, 3, 5, 5, seed=9, grad=True)
    check_dtypes(jit, lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b), q, k, v, bias)


def test_rotary_repeat_and_baddbmm(jit):
    """cos and sin repeated by expand and reshape and taken by position; scores of baddbmm with beta and alpha.

    Source: Lightning-AI/lightning-thunder issue 2330. Right: equal to eager.
    """
    q, k = R(2, 3, 5, 8, grad=True), R(2, 3, 5, 8, seed=1, grad=True)
    positions = torch.tensor([[0, 1, 2, 3, 4], [3, 4, 0, 1, 2]])

    def turned(t, cos, sin):
        return t * cos + torch.cat((-t[..., 4:], t[..., :4]), -1) * sin

    def fn(q, k, positions):
        f = torch.outer(torch.arange(6, device=q.device).float(), 0.5 ** torch.arange(4, device=q.device).float())
        angle = f[:, None, :].expand(6, 2, 4).reshape(6, 8)
        cos, sin = (g(angle)[positions].unsqueeze(1).to(q.dtype) for g in (torch.cos, torch.sin))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        zeros = torch.zeros(6, 5, 5, dtype=q.dtype, device=q.device)
        s = torch.baddbmm(zeros, q.reshape(6, 5, 8), k.reshape(6, 5, 8).transpose(1, 2), beta=1.0, alpha=8**-0.5)
        i = torch.arange(5, device=q.device)
        return torch.softmax(torch.where(i[None] <= i[:, None], s.view(2, 3, 5, 5), torch.finfo(s.dtype).min), -1)

    jitted = check_dtypes(jit, fn, q, k, positions)
    assert softmaxes(jitted) == ["triton_ascend_softmax"]
    assert "where" in fused(jitted)


def test_a_checkpoint_around_attention_and_a_router(jit):
    """The backward computes the layer again, its softmaxes too.

    Source: modelscope/ms-swift issue 9390. Right: equal to eager, gradients too.
    """

    def layer(x, w):
        mask = torch.ones(6, 6, device=x.device).triu(1).bool()
        scores = (x @ x.transpose(-1, -2) / 8**0.5).masked_fill(mask, -INF)
        h = torch.softmax(scores.float(), -1).to(x.dtype) @ x
        p = torch.softmax(F.linear(h, w), -1, dtype=F32)
        return h * p.max(-1, keepdim=True)[0].to(x.dtype)

    q, w = R(2, 6, 8, grad=True), R(4, 8, seed=1, grad=True)
    jitted = check_dtypes(jit, lambda x, w: checkpoint(layer, x, w, use_reentrant=False) * 2.0, q, w)
    assert softmaxes(jitted) == ["triton_ascend_softmax"] * 2


def test_gradients_of_padded_queries(jit):
    """Nobody reads the result of a padded query; its gradient is still to be finite. Keys wider than the bound too.

    Source: MinghuasLab/flash-attention-npu issue 77. Right: equal to eager, no NaN.
    """
    for keys in (17, 300):
        mask = (torch.arange(keys) < keys // 2)[None, None, None].expand(2, 1, 9, keys).clone()
        mask[1, :, 5:] = False

        def fn(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        given = (*(t.detach().to(BF16).requires_grad_() for t in qkv(9, keys, 8)), mask)
        got = grads(jit(fn), given, DEV)
        same(got, grads(fn, given), **TOLERANCE[BF16])
        assert all(torch.isfinite(g).all() for g in got[1])


def test_the_whole_window_lies_in_the_padding(jit):
    """A short and a long sequence with a sliding window: dead rows in the middle of the short one.

    Source: huggingface/transformers PR 45511. Right: uniform rows for finfo.min, zeros where
    attention is told by booleans.
    """
    q, k, v = qkv(12, 12)
    keep = torch.ones(2, 12, dtype=torch.bool)
    keep[0, 4:] = False
    i = torch.arange(12)
    mask = keep[:, None, None, :] & ((i[:, None] - i[None]).abs() < 3)
    assert (~mask).all(-1).any()

    def added(q, k, v, m):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.5 + m, -1, dtype=F32).to(q.dtype) @ v

    def given(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    def made_inside(q, k, v, keep):
        i = torch.arange(12, device=q.device)
        m = keep[:, None, None, :] & ((i[:, None] - i[None]).abs() < 3)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    check_dtypes(jit, added, q, k, v, torch.where(mask, 0.0, FMIN))
    for fn, m in ((given, mask), (made_inside, keep)):
        jitted = check_dtypes(jit, fn, q, k, v, m)
        assert softmaxes(jitted) == (["triton_ascend_safe_softmax"] if DEV == "cpu" else [])  # npu: aclnn_attention
