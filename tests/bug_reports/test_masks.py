"""Small inputs from public bug reports, with their right values: attention masks around a softmax."""

import math

import torch
import torch.nn.functional as F
from report import DEV, F32, INF, NAN, R, check, check_dtypes, check_grad, cpu, place, same, softmaxes


def mask_bool(q, k, off=0):
    return torch.ones(q, k, dtype=torch.bool).tril(off)


def test_two_finfo_min_masks_added(jit):
    """causal plus padding, both finfo.min: where both apply the sum is -inf. In float16 a kernel that adds in
    float32 gets a finite number instead.

    Source: huggingface/transformers PR 27114; NVIDIA-NeMo/Automodel PR 2658; huggingface/transformers PR 31303.
    Right: equal to eager, NaN rows included.
    """
    for dt in (torch.float32, torch.bfloat16, torch.float16):
        lo = torch.finfo(dt).min
        causal = torch.zeros(5, 5, dtype=dt).masked_fill(~mask_bool(5, 5), lo)
        pad = torch.tensor([lo, lo, 0, 0, 0], dtype=dt)
        check(jit, lambda s, c, p: torch.softmax(s + (c + p), -1), R(5, 5, dtype=dt), causal, pad)
        check(
            jit,
            lambda s: torch.softmax(s, -1),
            torch.full((1, 3), lo, dtype=dt) + lo,
            want=torch.full((1, 3), NAN, dtype=dt),
        )


def test_mask_broadcast_shapes(jit):
    """A size-1 batch, head or query axis of the mask must broadcast; fused attention on Ascend did not
    broadcast the query axis.

    Source: huggingface/diffusers issue 14380, PR 14288; microsoft/onnxruntime PR 14149. Right: equal to eager
    for each mask shape.
    """
    B, H, Q, K = 2, 3, 4, 5
    x = R(B, H, Q, K)
    for shp in ((K,), (Q, K), (1, 1, Q, K), (B, 1, 1, K), (B, 1, Q, K), (B, H, 1, K), (1, H, Q, 1), (B, 1, 1, 1)):
        m = torch.arange(math.prod(shp)).reshape(shp) % 3 == 1
        bias = R(*shp, seed=3)
        check(jit, lambda s, m, b: torch.softmax((s * 0.125).masked_fill(m, -1e4) + b, -1), x, m, bias)


def test_scale_applies_to_scores_not_to_mask(jit):
    """softmax(x*s + m) and softmax((x + m)*s) are different functions. Folding the scale into exp dilutes a
    soft bias.

    Source: tenstorrent/tt-metal PR 42891. Right: equal to eager for both orders.
    """
    x, m = R(2, 2, 6, 6), R(1, 2, 6, 6, seed=4, scale=3)
    a = check(jit, lambda x, m: torch.softmax(x * 0.125 + m, -1), x, m)
    b = check(jit, lambda x, m: torch.softmax((x + m) * 0.125, -1), x, m)
    c = check(jit, lambda x, m: torch.softmax(x / 8.0 + m, -1), x, m)
    assert (cpu(a) - cpu(b)).abs().max() > 0.05
    same(a, c)


def test_left_padding_and_causal_sdpa(jit):
    """Left-padded rows see no key at all. SDPA gives 0 there; NaN would spread to every later layer.

    Source: pytorch/pytorch issues 103749, 103963; unslothai/unsloth PR 9848. Right: 0 for dead rows, no NaN
    (torch 2.5 and later).
    """
    q, k, v = R(2, 2, 5, 8), R(2, 2, 5, 8, seed=1), R(2, 2, 5, 8, seed=2)
    pad = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None, :]
    m = pad & mask_bool(5, 5)
    out = check(jit, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, m)
    assert (cpu(out)[0, :, :3] == 0).all()


def test_t5_position_bias(jit):
    """T5 adds a learned bias of shape (1,H,Q,K) and a padding mask, takes softmax in float32 and casts back.

    Source: huggingface/transformers issue 15459, PR 47014; Oneflow-Inc/libai issue 406. Right: equal to eager,
    float16 result, bias gradient summed over the batch.
    """
    s, b = R(2, 3, 4, 5, dtype=torch.float16, grad=True), R(1, 3, 4, 5, dtype=torch.float16, seed=1, grad=True)
    m = torch.zeros(2, 1, 1, 5, dtype=torch.float16)
    m[1, ..., 3:] = torch.finfo(torch.float16).min
    fn = lambda s, b, m: torch.softmax((s + (b + m)).float(), dim=-1).type_as(s)
    check_grad(jit, fn, s, b, m, rtol=2e-3, atol=2e-3)
    assert jit(fn)(*place((s, b, m), DEV)).dtype == torch.float16


def test_softcap_before_and_after_mask(jit):
    """tanh(-inf) is -1: capping after the mask revives masked keys. A fusion must keep the order that the user
    wrote.

    Source: onnx/onnx issue 7865, PR 7867; Dao-AILab/flash-attention PR 1025. Right: masked weight exactly 0 in
    the right order; the wrong order leaks as in eager.
    """
    x, m = R(2, 6, 6, scale=9), ~mask_bool(6, 6)
    cap = lambda t: torch.tanh(t / 5.0) * 5.0
    good = check(jit, lambda x, m: torch.softmax(cap(x).masked_fill(m, -INF), -1), x, m)
    leak = check(jit, lambda x, m: torch.softmax(cap(x.masked_fill(m, -INF)), -1), x, m)
    assert (cpu(good)[:, m] == 0).all() and (cpu(leak)[:, m] > 0).all()


def test_attention_sinks(jit):
    """gpt-oss appends one logit per head. The row is K+1 wide and never dead, so masked weights are 0, not NaN.

    Source: fla-org/flash-linear-attention PR 831; sgl-project/sgl-kernel-npu PR 216. Right: equal to eager; a
    dead row puts all weight on the sink.
    """
    s, sink = R(2, 3, 4, 8, dtype=torch.bfloat16, grad=True), R(3, dtype=torch.bfloat16, seed=1, grad=True)
    m = ~mask_bool(4, 8, 2).clone()
    m[0] = True

    def fn(s, sink, m):
        z = torch.cat([s.masked_fill(m, -INF), sink.reshape(1, -1, 1, 1).expand(2, -1, 4, 1)], dim=-1)
        z = z - z.amax(dim=-1, keepdim=True)
        return torch.softmax(z, dim=-1, dtype=z.dtype)[..., :-1]

    check_grad(jit, fn, s, sink, m, rtol=2e-2, atol=2e-2)
    assert (cpu(jit(fn)(*place((s, sink, m), DEV)))[:, :, 0] == 0).all()


def test_sliding_window_long(jit):
    """Row i sees only i-7..i of 4096 keys; nearly every block of the row is fully masked.

    Source: ROCm/aiter PR 2505; flagos-ai/FlagAttention issue 25. Right: equal to eager, exactly 0 outside the
    window.
    """
    i = torch.tensor([0, 5, 100, 2047, 2048, 4095])[:, None]
    j = torch.arange(4096)[None, :]
    m = (j <= i) & (j > i - 8)
    out = check(jit, lambda x, m: torch.softmax(torch.where(m, x, -INF), -1), R(6, 4096), m)
    assert (cpu(out)[~m] == 0).all()


def test_nan_under_the_mask(jit):
    """Selecting with where hides a NaN score; adding -inf keeps it. Turning one form into the other changes the
    result.

    Source: pytorch/pytorch issue 101967. Right: masked_fill hides the NaN, addition does not.
    """
    x = torch.tensor([[1.0, NAN, 2.0], [0.0, 1.0, NAN]])
    m = torch.tensor([[False, True, False], [False, False, False]])
    check(jit, lambda x, m: torch.softmax(x.masked_fill(m, -INF), -1), x, m)
    out = check(jit, lambda x, m: torch.softmax(x + torch.zeros_like(x).masked_fill(m, -INF), -1), x, m)
    assert torch.isnan(cpu(out)).all()


def test_mask_dtypes(jit):
    """Masks come as bool, as 0/1 integers or as 0/1 floats; the 1 - mask form is common.

    Source: triton-lang/triton-ascend issue 2062. Right: equal to eager for each dtype.
    """
    x, keep = R(3, 6), mask_bool(3, 6, 1)
    for dt in (torch.bool, torch.uint8, torch.int64, torch.float32):
        m = keep.to(dt)
        check(jit, lambda x, m: torch.softmax(x.masked_fill(m == 0, -INF), -1), x, m)
        check(jit, lambda x, m: torch.softmax(x + (1.0 - m.to(x.dtype)) * -10000.0, -1), x, m)


def test_hf_eager_attention_bf16(jit):
    """The Hugging Face eager attention: bfloat16 scores, float32 softmax, cast back, matmul.

    Source: huggingface/transformers PR 18057; pytorch/pytorch PR 188247. Right: equal to eager within one
    bfloat16 step, bfloat16 result.
    """
    q, k, v = (R(2, 4, 7, 16, dtype=torch.bfloat16, seed=i, grad=True) for i in range(3))
    m = torch.zeros(1, 1, 7, 7, dtype=torch.bfloat16).masked_fill(~mask_bool(7, 7), torch.finfo(torch.bfloat16).min)

    def fn(q, k, v, m):
        w = torch.matmul(q, k.transpose(2, 3)) * 0.25 + m[:, :, :, : k.shape[-2]]
        w = F.dropout(F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype), p=0.0, training=False)
        return torch.matmul(w, v).transpose(1, 2).contiguous()

    check_grad(jit, fn, q, k, v, m, rtol=3e-2, atol=3e-2)


def test_a_0d_tensor_as_the_fill_value(jit):
    """The value is an argument; the mask is expanded without a copy, so three of its strides are 0.

    Source: pytorch/torchdynamo issue 1619. Right: equal to eager.
    """
    x, mask = R(2, 3, 6, 6, grad=True), (torch.arange(12).view(2, 1, 1, 6) % 4 == 1).expand(2, 3, 6, 6)
    for value in (-1e4, -INF, torch.finfo(torch.float32).min):
        fn = lambda x, m, v: torch.softmax(x.masked_fill(m, v), -1)
        jitted = check_dtypes(jit, fn, x, mask, torch.tensor(value), dtypes=(F32,))
        assert softmaxes(jitted) == ["triton_ascend_softmax"]


def test_rows_full_of_minus_10000(jit):
    """The number is finite, so a row full of it is uniform; then made zero by hand in three ways.

    Source: NVIDIA/apex issue 1311, PR 1243. Right: equal to eager.
    """
    x, mask = R(2, 2, 4, 6, grad=True), torch.zeros(2, 1, 4, 6, dtype=torch.bool)
    mask[0], mask[1, ..., 3:] = True, True
    for fn in (
        lambda x, m: torch.softmax((x * 0.7).masked_fill(m, -10000.0), -1),
        lambda x, m: (
            torch.softmax((x * 0.7).masked_fill(m, -10000.0), -1) * (1.0 - m.all(-1, keepdim=True).to(x.dtype))
        ),
        lambda x, m: torch.where(m.all(-1, keepdim=True), 0.0, torch.softmax((x * 0.7).masked_fill(m, -10000.0), -1)),
        lambda x, m: torch.softmax((x * 0.7).masked_fill(m, -INF), -1).masked_fill(m, 0.0),
    ):
        check_dtypes(jit, fn, x, mask)
