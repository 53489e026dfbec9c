"""Small inputs from public bug reports, with their right values: cat of one tensor."""

import torch
from report import DEV, R, check, check_grad, place, same


def test_cat_same_tensor_every_dim(jit):
    """The RoPE pattern: tile order is x,x,x and not each element n times.

    Source: NVIDIA/Fuser PR 3645. Right: equal to eager, contiguous.
    """
    x = R(2, 3, 4)
    for d in (0, 1, 2, -1, -2, -3):
        for n in (2, 3, 4):
            assert check(jit, lambda a: torch.cat((a,) * n, dim=d), x, exact=True).is_contiguous()
    check(jit, lambda f: (torch.cat((f, f), -1).cos(), torch.cat((f, f), -1).sin()), R(1, 6, 8))


def test_cat_same_tensor_on_size_one_dim(jit):
    """On a size-1 axis broadcast + expand + reshape stays a stride-0 view; a later in-place write then hits all
    copies.

    Source: NVIDIA/Fuser issue 3682, PR 3687. Right: values equal, own memory, writable.
    """
    for shp, d in (((4, 1, 8), 1), ((4, 8, 1), -1), ((1, 8), 0), ((1,), 0), ((1, 1, 1), 2)):
        x = R(*shp)
        out = check(jit, lambda a: torch.cat((a, a, a), dim=d), x, exact=True)
        assert out.is_contiguous()
        out.select(d, 0).add_(5.0)
        same(out.select(d, 1), x.select(d, 0), exact=True)


def test_cat_same_tensor_at_some_positions(jit):
    """(a,b,a), (a,a,b) and (a, a of another size) are no repeats; (a, a+0, a.view) are equal values but other
    tensors.

    Source: pytorch/executorch PR 16091. Right: equal to eager.
    """
    a, b = R(2, 3), R(2, 3, seed=1)
    for f in (
        lambda a, b: torch.cat((a, b, a), 1),
        lambda a, b: torch.cat((a, a, b), 0),
        lambda a, b: torch.cat((a, a[:1], a)),
        lambda a, b: torch.cat((a, a + 0, a.view(2, 3)), 1),
        lambda a, b: torch.cat((a, a.t().t(), -a), -1),
    ):
        check(jit, f, a, b, exact=True)


def test_cat_same_values_other_dtypes(jit):
    """x with x.half() or x.double() must promote. Thunder raised a dtype error on mixed cat.

    Source: Lightning-AI/lightning-thunder issues 812, 750; pytorch/pytorch issue 35684. Right: promoted dtype,
    equal to eager.
    """
    x = R(2, 3)
    check(jit, lambda a: torch.cat((a, a.half()), 1), x, exact=True)
    if DEV == "cpu":  # torch_npu turns a cast to float64 into one to float32, with a warning
        check(jit, lambda a: torch.cat((a, a.double(), a)), x, exact=True)
    check(jit, lambda a: torch.cat((a.bfloat16(), a.half())), x, exact=True)
    check(jit, lambda a: torch.cat(((a > 0), (a > 0), (a > 0).long())), x, exact=True)


def test_cat_with_legacy_empty(jit):
    """KV caches start as a 1-D empty tensor. It is skipped for shape, also when it comes first and dim is
    negative, but its dtype counts.

    Source: pytorch/pytorch issues 185535, 107118, 57938; PR 152995. Right: empty is skipped but still takes
    part in dtype promotion.
    """
    e, x = torch.empty(0), R(1, 2, 3, 4)
    check(jit, lambda e, x: torch.cat((e, x, x), dim=-2), e, x, exact=True)
    check(jit, lambda e, x: torch.cat((x, x, e), dim=1), e, x, exact=True)
    check(jit, lambda e, x: torch.cat((e, x), dim=-1), e, x, exact=True)
    assert check(jit, lambda e, x: torch.cat((e, x, x)), e, torch.arange(3), exact=True).dtype == torch.float32


def test_cat_of_one_tensor_is_a_copy(jit):
    """An Ascend concat kernel passes a single input through; a write to the output then changes the input.

    Source: PaddlePaddle/PaddleCustomDevice PR 207; pytorch/pytorch PR 113514. Right: input unchanged after a
    write to the output.
    """
    (x,) = place((torch.arange(4.0),), DEV)
    out = jit(lambda a: torch.cat((a,)))(x)
    out.add_(10.0)
    same(x, torch.arange(4.0), exact=True)
    same(jit(lambda a: (torch.cat([a]).mul_(2.0), a))(x), (torch.arange(4.0) * 2, torch.arange(4.0)), exact=True)


def test_cat_output_written_afterwards(jit):
    """expand shares memory; if it escapes, one write changes every copy and the input.

    Source: pytorch/pytorch issues 114302, 184088, 195451. Right: only the written copy changes, the input
    never.
    """
    (x,) = place((R(2, 3),), DEV)
    ref = x.clone()
    out = jit(lambda a: torch.cat((a, a), 0))(x)
    out[0].fill_(99.0)
    same((out[2:], x), (ref, ref), exact=True)

    def fn(a):
        y = torch.cat((a, a), 0)
        y[:2].mul_(2.0)
        y += 1.0
        return y, a

    check(jit, fn, R(2, 3), exact=True)


def test_cat_same_tensor_backward(jit):
    """The gradient is the sum over the copies; different weights per copy show a wrong reduction axis. Size-1
    axis too.

    Source: NVIDIA/Fuser PR 3828. Right: sum of the chunks of the cotangent.
    """
    check_grad(jit, lambda a: torch.cat((a, a, a), 1), R(2, 3, grad=True))
    check_grad(jit, lambda a: torch.cat((a, a), -1).cos() * 2, R(4, 1, grad=True))
    x = R(2, 2, grad=True)
    check_grad(jit, lambda a: torch.cat((a, a.detach(), a)), x)


def test_cat_same_noncontiguous(jit):
    """A view-based reshape fails or copies wrongly on strided sources; aclnnInplaceCopy refuses general
    strides.

    Source: NVIDIA/Fuser PR 841; torch/torch7 issue 59; candle-org/candle PR 548. Right: equal to eager,
    contiguous.
    """
    base = R(4, 6)
    for v in (base.t(), base[:, ::2], base[:1].expand(4, 6), base[:, :1].expand(4, 6), base[1:3, 2:5]):
        for d in (0, 1):
            assert check(jit, lambda a: torch.cat((a, a), d), v, exact=True).is_contiguous()
