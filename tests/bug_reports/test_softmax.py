"""Small inputs from public bug reports, with their right values: softmax and log_softmax: values and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from report import BF16, DEV, F16, F32, INF, NAN, R, check, check_dtypes, check_grad, cpu, fused, grads, place, same
from report import weights as weights_of


def test_plain_softmax_dead_row_stays_nan(jit):
    """A row with only -inf gives 0/0. Maintainers call NaN the expected answer for plain softmax. A guard meant
    for _safe_softmax must not leak here.

    Source: pytorch/pytorch issue 25110. Right: NaN in the dead row, normal elsewhere.
    """
    x = torch.tensor([[-INF] * 3, [0.0, 0.0, -INF]])
    check(jit, lambda a: torch.softmax(a, -1), x, want=torch.tensor([[NAN] * 3, [0.5, 0.5, 0.0]]))


def test_safe_softmax_dead_row_is_zero(jit):
    """The private safe variant returns 0 for a fully masked row, and its gradient is 0, not NaN.

    Source: pytorch/pytorch PR 131060; issue 55056. Right: zeros in the dead row, zero gradient there.
    """
    x = torch.tensor([[-INF] * 3, [1.0, 2.0, -INF]], requires_grad=True)
    fn = lambda a: torch._safe_softmax(a, -1)
    check_grad(jit, fn, x)
    out, (g,) = grads(jit(fn), (x,), DEV)
    same((out[0], g[0]), (torch.zeros(3), torch.zeros(3)), exact=True)


def test_row_of_finfo_min_is_uniform(jit):
    """Masks often use the lowest finite number. A row full of it is a valid row and gives 1/n, never 0 or NaN.

    Source: pytorch/pytorch issue 109517; NVIDIA-NeMo/Automodel PR 2658. Right: 1/n exactly, for softmax and
    _safe_softmax.
    """
    for dt in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.full((2, 8), torch.finfo(dt).min, dtype=dt)
        check(
            jit,
            lambda a: (torch.softmax(a, -1), torch._safe_softmax(a, -1)),
            x,
            want=(torch.full((2, 8), 0.125, dtype=dt),) * 2,
            exact=True,
        )


def test_scale_overflows_to_inf_before_softmax(jit):
    """x*s is +-inf, so eager softmax is NaN; a rewrite that subtracts the max first returned finite ones.

    Source: pytorch/pytorch issue 161150. Right: all NaN.
    """
    x = torch.tensor([[-1.0, 1.0, 1.0, -1.0]]) * 1e30
    check(jit, lambda a: torch.softmax(a * 1e30, -1), x, want=torch.full((1, 4), NAN))


def test_huge_and_negative_scale(jit):
    """A 1e14 scale gave NaN after the scale was folded; with a negative scale the largest input is no longer
    the row maximum.

    Source: pytorch/pytorch issues 163932, 100775. Right: one-hot, no NaN.
    """
    x = R(5, 33)
    for s in (1e14, -1.7e14, -2.0):
        out = check(jit, lambda a: torch.softmax(a * s, -1), x)
        assert torch.isfinite(cpu(out)).all()


def test_leading_blocks_all_neginf(jit):
    """The running max is still -inf after the first blocks; exp(-inf - -inf) poisons the rest of the row.

    Source: sgl-project/sglang PR 38142; vllm-project/vllm PR 4405; ROCm/aiter PR 2505. Right: equal to eager,
    no NaN.
    """
    for n in (40, 300, 3000, 20000):
        x = R(3, n)
        x[0, : n - 1] = -INF
        x[1, : n // 2] = -INF
        out = check(jit, lambda a: (torch.softmax(a, -1), torch.log_softmax(a, -1)), x)
        assert cpu(out[0])[0, -1] == 1.0 and not torch.isnan(cpu(out[0])).any()


def test_transposed_input(jit):
    """Kernels that index storage return the softmax of the untransposed rows without an error.

    Source: tracel-ai/burn issue 4815; flagos-ai/Torch-FL issue 171. Right: softmax of the logical rows.
    """
    x = torch.arange(1.0, 13.0).view(3, 4).t()
    col = torch.softmax(torch.tensor([1.0, 5.0, 9.0]), 0)
    check(jit, lambda a: torch.softmax(a, 1), x, want=col.expand(4, 3).clone())


def test_backward_with_zero_stride_cotangent(jit):
    """sum().backward() hands the backward an expanded stride-0 gradient; a kernel that assumes contiguous
    memory reads out of bounds.

    Source: flagos-ai/FlagGems PR 5723. Right: equal to eager.
    """
    x = R(16, 33, grad=True)
    ones = lambda o: torch.ones((), device=o.device).expand(o.shape)
    check_grad(jit, lambda a: torch.log_softmax(a, -1), x, cot=ones)
    row = lambda o: weights_of(o[:, :1]).expand(o.shape)
    check_grad(jit, lambda a: torch.log_softmax(a.t(), 0).t(), x, cot=row)


def test_every_dim_positive_and_negative(jit):
    """A pattern rewrite ignored dim and always took the last axis.

    Source: pytorch/pytorch issue 196468. Right: equal to eager for every dim.
    """
    x = R(3, 5, 7)
    for d in (0, 1, 2, -1, -2, -3):
        check(jit, lambda a: (torch.softmax(a * 0.5 + 1.0, d), F.log_softmax(a, dim=d)), x)
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        jit(lambda a: torch.softmax(a, 3))(x.to(DEV))


def test_width_one(jit):
    """Width 1: softmax is exactly 1 and log_softmax exactly 0, but -inf, +inf and NaN still give NaN.

    Source: pytorch/pytorch issue 46999 (size-1 reductions); own probe. Right: 1, 0, zero gradient; NaN for -inf
    and NaN.
    """
    x = torch.tensor([[3.0], [-1e30], [-INF], [INF], [NAN]])
    check(
        jit,
        lambda a: (torch.softmax(a, -1), torch.log_softmax(a, -1)),
        x,
        want=(torch.tensor([[1.0], [1.0], [NAN], [NAN], [NAN]]), torch.tensor([[0.0], [0.0], [NAN], [NAN], [NAN]])),
    )
    check_grad(jit, lambda a: torch.softmax(a, -1), R(4, 1, grad=True), want=[torch.zeros(4, 1)])


def test_empty_rows_and_empty_width(jit):
    """Zero rows launched an empty grid and zero width divided by zero.

    Source: pytorch/pytorch issues 17256, 17262; PR 91322. Right: empty result, right shape, no crash.
    """
    for shape in ((0, 5), (3, 0), (2, 0, 4), (0,), (4, 0, 0)):
        for d in (0, -1):
            check(jit, lambda a: torch.softmax(a * 0.5, d), torch.zeros(shape))
    check(jit, lambda a: torch.log_softmax(a, -1), torch.zeros(0, 5))
    check_grad(jit, lambda a: torch.log_softmax(a, -1), torch.zeros(0, 2, requires_grad=True))


def test_integer_input_with_dtype(jit):
    """Integers need dtype=. int64 to float64 must not pass through float32 (2**24+1 is lost there).

    Source: tinygrad/tinygrad PR 6914; own probe. Right: the cast comes first; without dtype eager refuses.
    """
    x = torch.tensor([[2**24, 2**24 + 1], [3, 3]])
    check(jit, lambda a: torch.softmax(a, -1, dtype=torch.float64), x, rtol=1e-12, atol=0)
    check(jit, lambda a: F.log_softmax(a.bool(), -1, dtype=torch.float32), x)
    with pytest.raises((NotImplementedError, RuntimeError, ValueError, TypeError)):
        torch.softmax(x, -1)


def test_half_input_float32_result(jit):
    """The request is: cast up, then compute. Computing in half and casting the result loses digits and the
    dtype.

    Source: pytorch/pytorch issues 102723, 81939; PR 188247. Right: float32 result at float32 precision.
    """
    for dt in (torch.float16, torch.bfloat16):
        x = R(4, 50, dtype=dt, scale=4)
        out = check(jit, lambda a: torch.softmax(a, -1, dtype=torch.float32), x, rtol=1e-5, atol=1e-8)
        assert out.dtype == torch.float32
        same(cpu(out).sum(-1), torch.ones(4), rtol=1e-5, atol=1e-6)


def test_double_precision_and_gradcheck(jit):
    """CANN lists DOUBLE for the forward but only half types and FLOAT for the backward. A checker that tests
    only the forward breaks training in double.

    Source: hiascend.com pages aclnnSoftmaxBackward (no DOUBLE) and aclnnSoftmax (DOUBLE); gitcode.com
    Ascend/triton-ascend where.md (no fp64). Right: 1e-12 against eager; gradcheck passes.
    """
    x = R(3, 7, dtype=torch.float64, grad=True)
    for f in (torch.softmax, torch.log_softmax):
        check_grad(jit, lambda a: f(a, -1), x, rtol=1e-12, atol=1e-14)
        assert torch.autograd.gradcheck(jit(lambda a: f(a, -1)), place((x,), DEV))


def test_fusion_keeps_half_rounding_between_ops(jit):
    """Eager rounds after each op. 256 + 1 is 256 in bfloat16, and 60000 * 2 is inf in float16; a fusion that
    stays in float32 sees other numbers. (A fusion may choose better precision, but then on purpose and in
    writing.)

    Source: pytorch/pytorch issues 182225, 60939; pytorch/torchtitan PR 2575. Right: eager: 0.5 / 0.5 in
    bfloat16, NaN in float16.
    """
    x, b = torch.full((1, 2), 256.0, dtype=torch.bfloat16), torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16)
    check(
        jit, lambda a, b: torch.softmax(a + b, -1), x, b, want=torch.full((1, 2), 0.5, dtype=torch.bfloat16), exact=True
    )
    h = torch.tensor([[6e4, 0.0]], dtype=torch.float16)
    check(jit, lambda a: torch.softmax(a * 2.0, -1), h, want=torch.full((1, 2), NAN, dtype=torch.float16))


def test_log_softmax_with_masked_entries(jit):
    """Masked entries are -inf, the rest finite; the gradient of a masked entry is 0. A dead row is NaN.

    Source: allenai/allennlp issue 890. Right: -inf at masked places, NaN only in the dead row.
    """
    x = torch.tensor([[-INF, 0.0, 0.0], [5.0, -INF, -INF], [-INF] * 3])
    l2 = -math.log(2.0)
    check(jit, lambda a: torch.log_softmax(a, -1), x, want=torch.tensor([[-INF, l2, l2], [0.0, -INF, -INF], [NAN] * 3]))
    check_grad(jit, lambda a: torch.log_softmax(a, -1)[:, 0], torch.tensor([[1.0, -INF, 2.0]], requires_grad=True))


def test_log_softmax_is_not_log_of_softmax(jit):
    """exp underflows at about -104, so log(softmax) returns -inf where log_softmax is finite.

    Source: own probe (log of softmax underflows). Right: [0, -200] and [-1e4, 0].
    """
    x = torch.tensor([[0.0, -200.0], [-1e4, 0.0]])
    check(jit, lambda a: F.log_softmax(a, -1), x, want=torch.tensor([[0.0, -200.0], [-1e4, 0.0]]), exact=True)
    same(jit(lambda a: torch.log(torch.softmax(a, -1)))(x.to(DEV))[0, 1], torch.tensor(-INF))


def test_rows_far_below_any_finite_start_of_the_maximum(jit):
    """A running maximum that starts at a finite number stays there where all scores lie below, and every exp is 0.

    Source: flashinfer-ai/flashinfer issue 4267. Right: equal to eager.
    """
    for base in (-5.5e4, -1e30):
        for n in (7, 300, 5000):
            x = (R(3, n) * abs(base) * 1e-5 + base).requires_grad_()
            check_dtypes(jit, lambda a: torch.softmax(a * 1.0, -1), x)
            check_dtypes(jit, lambda a: torch.log_softmax(a, -1), x)


def test_soft_cap_of_huge_scores(jit):
    """exp(2x) overflows at 44 in float32, and a tanh by its quotient is NaN.

    Source: vllm-project/vllm issue 56578. Right: finite, equal to eager.
    """
    x = torch.tensor([[1e4, -1e4, 3.0, 88.0, -88.0, 5e3], [3e4, 2e4, 1e3, -3e4, 0.0, 120.0]], requires_grad=True)
    for fn in (
        lambda a: torch.softmax(torch.tanh(a / 50.0) * 50.0, -1),
        lambda a: torch.softmax(30.0 * torch.tanh(a), -1),
    ):
        jitted = check_dtypes(jit, fn, x, dtypes=(F32, BF16, F16))
        assert "tanh" in fused(jitted)


def test_floor_behind_a_softmax(jit):
    """The sum of a row is 1 within an ulp, which floor makes 0 or 1; away from such a jump the result is eager's.

    Source: triton-lang/triton-ascend issue 1348. Right: equal to eager.
    """
    ramp = (torch.arange(32.0) / 8).view(32, 1).expand(32, 32).contiguous()
    for d in (0, 1):
        same(jit(lambda a: torch.softmax(a, d).sum(d))(ramp.to(DEV)), torch.ones(32), rtol=2e-7, atol=2e-7)
        check(jit, lambda a: torch.exp(torch.floor(torch.softmax(a, d).sum(d, keepdim=True) + 0.25)), ramp)
        check(jit, lambda a: torch.softmax(a, d).mul(40).add(0.013).floor(), R(32, 32))


def test_special_functions_over_every_axis(jit):
    """torch.special's names, over inner axes and lengths that are no multiple of a block.

    Source: flagos-ai/FlagGems issues 4995, 2852, PR 6251. Right: equal to eager.
    """
    for shape in ((3, 33, 5), (2, 257, 3), (1, 4097)):
        for d in range(len(shape)):
            for fn in (torch.special.log_softmax, torch.special.softmax):
                check_dtypes(jit, lambda a: fn(a, d), R(*shape, grad=True))
