"""Small inputs from public bug reports, with their right values: what Triton-Ascend and torch_npu do with a kernel."""

import torch
from report import DEV, INF, NAN, R, check, check_grad, cpu, place, same


def test_tail_widths_very_negative_rows(jit):
    """All values are about -1e4, so a tail padded with 0 or with stale data takes all the weight.

    Source: triton-lang/triton issue 737; Zaneham/Booth issue 76. Right: equal to eager for every width.
    """
    for n in (1, 2, 3, 7, 9, 15, 17, 31, 33, 63, 65, 127, 129, 255, 257, 1000, 1023, 1025, 2049, 4097):
        x = R(3, n) - 1e4
        check(jit, lambda a: (torch.softmax(a, -1), torch.log_softmax(a, -1)), x)


def test_narrow_slice_of_poisoned_wide_tensor(jit):
    """The rows are slices of a wider buffer whose other columns are NaN. Reading by shape instead of by stride,
    or past the mask, brings NaN in.

    Source: NVIDIA/apex PR 1568; triton-lang/triton-ascend issue 2332. Right: finite, equal to eager.
    """
    big = torch.full((6, 64), NAN)
    big[:, 11:24] = R(6, 13)
    for f in (lambda a: torch.softmax(a * 0.5, -1), lambda a: torch.softmax(a, -1), lambda a: torch.log_softmax(a, 0)):
        assert torch.isfinite(cpu(check(jit, f, big[:, 11:24]))).all()


def test_more_than_65535_rows(jit):
    """The launch limit counts the product of the grid axes. One program per row fails at 65536 rows.

    Source: vllm-project/vllm-ascend PR 10138; triton-lang/triton-ascend issue 16. Right: all rows right, the
    last ones too.
    """
    for shp, d in (((65535, 4), -1), ((65536, 4), -1), ((131075, 3), -1), ((300, 300, 5), -1), ((5, 70001), 0)):
        check(jit, lambda a: torch.softmax(a * 0.5, d), R(*shp))
    check_grad(jit, lambda a: torch.softmax(a, -1), R(65537, 3, grad=True))


def test_widths_near_the_ub_border(jit):
    """The live buffers of all fused inputs count, doubled by multibuffer. Widths around the executor border and
    a whole vocabulary.

    Source: triton-lang/triton-ascend issues 302, 2246; linkedin/Liger-Kernel PR 1087. Right: equal to eager for
    every width.
    """
    for n in (4096, 6143, 6144, 8192, 8193, 12288, 16384, 24576, 48000, 49152, 151936):
        for dt in (torch.float32, torch.bfloat16):
            x, b, m = R(2, n, dtype=dt), R(1, n, dtype=dt, seed=1), torch.arange(n) % 3 != 1
            check(
                jit,
                lambda x, b, m: torch.softmax((x * 0.5 + b).masked_fill(~m, -INF), -1, dtype=torch.float32).to(x.dtype),
                x,
                b,
                m,
                rtol=2e-2,
                atol=1e-5,
            )


def test_repeated_runs_are_bit_equal(jit):
    """Reading back the output inside the kernel gave row sums of 1e10 that changed from run to run.

    Source: flagos-ai/FlagGems issue 5123. Right: bit-equal over 20 runs.
    """
    f, (x,) = jit(lambda a: torch.softmax(a.float(), -1)), place((R(64, 256, dtype=torch.bfloat16),), DEV)
    first = cpu(f(x))
    same(first.sum(-1), torch.ones(64))
    for _ in range(20):
        same(f(x), first, exact=True)


def test_ranks_up_to_ten(jit):
    """CANN softmax takes at most 8 axes, Triton-Ascend tiles at most 5; the checker must decline or flatten.

    Source: hiascend.com aclnnSoftmax page (no more than 8 axes); gitcode.com Ascend/triton-ascend where.md
    (tiles of 1 to 5 axes). Right: equal to eager; the plugin declines what it cannot do.
    """
    for r in (1, 2, 5, 6, 8, 9, 10):
        x = R(*((2,) * (r - 1)), 3) if r > 1 else R(3)
        for d in (0, r // 2, -1):
            check(jit, lambda a: (torch.softmax(a, d), torch.cat((a, a), d)), x)
