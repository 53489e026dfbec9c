"""What becomes a region and what does not: structure by the trace, values by the kernels."""

from __future__ import annotations

import pytest
import thunder
import torch

import thunder_npu
from tests.fusion import random_regions, regions
from thunder_npu.executors import fusion
from thunder_npu.kernels import codegen
from thunder_npu.kernels.region import COLUMN, HALF

TRITON_ONLY = [thunder_npu.triton_ascend_ex]


def names(jitted) -> list[str]:
    return [b.sym.name for b in thunder.last_traces(jitted)[-1].bound_symbols]


def inside(jitted) -> list[str]:
    return [
        s.sym.name for b in thunder.last_traces(jitted)[-1].bound_symbols if fusion.is_region(b) for s in b.subsymbols
    ]


def check(function, *tensors, ascend, count=1, **options):
    """The jitted function, after its kernels have given the same results as eager."""
    jitted = regions.jit(function, **options)
    with torch.no_grad():
        want = function(*tensors)
        jitted(*tensors)
        found = regions.forward_regions(jitted)
        assert len(found) == count, names(jitted)
        regions.use_kernels(jitted)
        with ascend(), regions.without_bishengir():
            got = jitted(*tensors)
    half = any(t.dtype in HALF for t in tensors)
    tolerance = {"rtol": 2**-7, "atol": 2**-7} if half else {"rtol": 2e-5, "atol": 2e-6}
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    return jitted


# ---- what joins ------------------------------------------------------------------------------------------------------
BROADCASTS = [(2, 1, 1, 9), (1, 3, 5, 9), (9,), (2, 1, 5, 9), (2, 3, 5, 1), (1,), (), (5, 1), (1, 3, 1, 1)]


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_any_broadcast_is_read_in_place(shape, ascend):
    s, b = torch.randn(2, 3, 5, 9), torch.randn(shape)
    jitted = check(lambda s, b: torch.softmax(s * 0.5 + b, -1) * b, s, b, ascend=ascend)
    (region,) = regions.forward_regions(jitted)
    assert {t.shape for t in region.lowered.region.inputs} == {(2, 3, 5, 9), shape}
    assert set(names(jitted)) <= {"TritonAscend0", "python_del", "python_return", "unpack_trivial"}


OPERATIONS = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x + 1.0),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "neg": torch.neg,
    "reciprocal": lambda x: torch.reciprocal(x + 1.0),
    "rsqrt": lambda x: torch.rsqrt(x + 1.0),
    "sqrt": torch.sqrt,
    "pow": lambda x: x**2 + (x + 1.0) ** -1 + (x + 1.0) ** 3,
    "exp2": torch.exp2,
    "minimum": lambda x: torch.minimum(x, 0.1 * torch.ones_like(x)),
    "maximum": lambda x: torch.maximum(x, -x),
    "clamp": lambda x: x.clamp(0.1, 0.2),
    "where": lambda x: torch.where(x > 0.1, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x <= 0.1, -1.0),
    "and": lambda x: torch.where((x > 0.1) & ~(x >= 0.3), x, 2.0),
    "half and back": lambda x: x.half().float(),
    "bool to float": lambda x: (x > 0.1).float() * x,
    "number left": lambda x: 1.0 - 2.0 / (3.0 + x),
    "sum": lambda x: x.sum(-1),
    "amax": lambda x: x.amax(-1, keepdim=True),
    "mean": lambda x: x - x.mean(-1, keepdim=True),
    "amin": lambda x: x.amin(-1),
    "0-d": lambda x: x * torch.tensor(0.5),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operation_joins(operation, dtype, ascend):
    x = torch.randn(6, 9).to(dtype)
    jitted = check(lambda x: OPERATIONS[operation](torch.softmax(x, -1)), x, ascend=ascend)
    assert not [n for n in names(jitted) if n not in ("TritonAscend0", "python_del", "python_return", "unpack_trivial")]


@pytest.mark.parametrize(
    "kind", ["swapped", "sliced", "column stride 2", "transposed", "expanded rows", "expanded columns"]
)
def test_strides(kind, ascend):
    x = {
        "swapped": torch.randn(3, 2, 5, 9).transpose(0, 1),
        "sliced": torch.randn(2, 3, 5, 20)[..., 4:13],
        "column stride 2": torch.randn(2, 3, 5, 18)[..., ::2],
        "transposed": torch.randn(2, 3, 9, 5).transpose(-1, -2),
        "expanded rows": torch.randn(1, 3, 1, 9).expand(2, 3, 5, 9),
        "expanded columns": torch.randn(2, 3, 5, 1).expand(2, 3, 5, 9),
    }[kind]
    check(
        lambda x, y: (torch.softmax(x * 0.5, -1) + y, torch.softmax(y, -1)), x, torch.randn(2, 3, 5, 9), ascend=ascend
    )


@pytest.mark.parametrize("offset", [0, 2])
def test_causal_masks_are_computed_not_read(offset, ascend):
    def comparison(s):
        i, j = torch.arange(s.shape[-2]), torch.arange(s.shape[-1])
        return torch.softmax(torch.where(i[:, None] + offset >= j[None, :], s, float("-inf")), -1)

    def triangle(s):
        open_ = torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool).tril(offset)
        return torch.softmax(s.masked_fill(~open_, -1e9), -1)

    for function in (comparison, triangle):
        jitted = check(function, torch.randn(2, 3, 7, 9), ascend=ascend)
        (region,) = regions.forward_regions(jitted)
        assert len(region.lowered.region.inputs) == 1
        assert any(node.op == "index" for node in region.lowered.region.nodes)


def test_one_causal_mask_for_two_layers_is_made_by_each(ascend):
    def function(a, b):
        mask = torch.ones(9, 9, dtype=torch.bool).tril()
        p = torch.softmax(torch.where(mask, a, -1e9), -1)
        return torch.softmax(torch.where(mask, p @ b, -1e9), -1)

    jitted = check(function, torch.randn(2, 9, 9), torch.randn(2, 9, 9), ascend=ascend, count=2)
    assert "tril" not in names(jitted)


def test_reshapes_of_the_rows_are_relabelling(ascend):
    def function(s, m):
        s = s.view(2, 3, 5, 9) + m
        return torch.softmax(s.view(6, 5, 9), -1).view(2, 3, 5, 9).mul(2.0).reshape(30, 9)

    jitted = check(function, torch.randn(6, 5, 9), torch.randn(2, 1, 5, 9), ascend=ascend)
    assert "mul" in inside(jitted)


# ---- views that something outside needs ------------------------------------------------------------------------------
def result_and_view(x):
    p = torch.softmax(x * 0.5, -1)
    q = p.view(10, 9)
    return p, q, q * 2.0


def view_of_a_view(x):
    p = torch.softmax(x * 0.5, -1)
    q = p.transpose(0, 1)
    r = q.unsqueeze(0)
    return q, r * 2.0, r


def view_of_the_input(x):
    v = x.transpose(0, 1)
    return v, torch.softmax(v * 0.5, -1)


def spread_row(x):
    p = torch.softmax(x * 0.5, -1)
    m = p.amax(-1, keepdim=True).expand(2, 5, 9)
    return m, m * p


@pytest.mark.parametrize(
    ("function", "written"),
    [(result_and_view, 2), (view_of_a_view, 2), (view_of_the_input, 1), (spread_row, 2)],
)
def test_a_view_shares_memory_as_in_eager(function, written, ascend):
    """By the reference path and by the kernels: a view costs no tensor, and shows the same memory as in eager."""
    x = torch.randn(2, 5, 9)
    jitted = check(function, x, ascend=ascend)
    (region,) = regions.forward_regions(jitted)
    assert len(region.lowered.region.outputs) == written

    def sharing(results):
        tensors = (x, *results)
        return [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in tensors] for b in tensors]

    def strides(results):
        return [t.stride() for t in results]

    want = function(x)
    with ascend(), regions.without_bishengir():
        by_kernels = jitted(x)
    for got in (by_kernels, regions.jit(function)(x)):
        assert sharing(got) == sharing(want)
    assert strides(by_kernels)[0] == strides(want)[0]


def test_a_view_needed_outside_is_in_the_report_once():
    jitted = regions.jit(result_and_view)
    jitted(torch.randn(2, 5, 9))
    (info,) = fusion.regions(thunder.last_traces(jitted)[-1])
    assert [shape for _, _, shape in info.outputs] == [(2, 5, 9), (10, 9)]
    assert info.ends == ()


@pytest.mark.parametrize("axes", [(2, 3, 2, 3, 2, 3), (3, 2, 2, 2, 3)])
@pytest.mark.parametrize("order", [None, "reversed", "swapped"])
def test_more_axes_than_a_kernel_walks(axes, order, ascend):
    """A mask over every second axis, a result with the axes in another order: not fused, and the report says why."""
    n = len(axes)
    dims = {None: [*range(n)], "reversed": [*range(n)][::-1], "swapped": [i ^ 1 if i ^ 1 < n else i for i in range(n)]}
    permutation = (*dims[order], n)

    def function(x, m):
        return torch.softmax(x.exp() * 0.5, -1).mul(2.0).add(m).permute(permutation).mul(0.5)

    x, m = torch.randn(*axes, 9), torch.randn(*(n if i % 2 == 0 else 1 for i, n in enumerate(axes)), 9)
    jitted = check(function, x, m, ascend=ascend)
    (info,) = fusion.regions(thunder.last_traces(jitted)[-1])
    assert any("axes of rows; a kernel walks 4" in reason for reason in info.ends), info.ends
    assert "exp" in info.symbols


def test_several_softmaxes_and_outputs(ascend):
    def function(a, b):
        p, q = torch.softmax(a, -1), torch.softmax(b * 2.0, -1)
        return p * q, p, (p * q).sum(-1), torch.softmax(p + q, -1)

    check(function, torch.randn(4, 5, 9), torch.randn(4, 5, 9), ascend=ascend)


def test_rows_that_are_dead_nan_or_infinite(ascend):
    x = torch.randn(5, 9)
    x[0] = -torch.inf
    x[1, 2] = torch.nan
    x[2, 3] = torch.inf
    x[3, :4] = -torch.inf
    x[4] = torch.finfo(torch.float32).min
    check(
        lambda x: (torch.softmax(x, -1) * 2.0, torch._safe_softmax(x, -1) + 1.0, x.amax(-1)), x, ascend=ascend, count=2
    )


# ---- what does not ---------------------------------------------------------------------------------------------------
def test_a_softmax_alone_stays_an_operator():
    jitted = regions.jit(lambda x: torch.softmax(x, -1))
    jitted(torch.randn(3, 9))
    assert "triton_ascend_softmax" in names(jitted)


def test_elementwise_symbols_outside_stay_as_they_were():
    def function(x, w):
        return torch.softmax(x, -1) * 2.0, torch.tanh(w) + 1.0

    jitted = regions.jit(function)
    jitted(torch.randn(3, 9), torch.randn(4))
    assert names(jitted).count("tanh") == 1
    assert "tanh" not in inside(jitted)


def test_no_region_leaves_the_trace_alone():
    jitted = regions.jit(lambda x: torch.tanh(x) + 1.0)
    jitted(torch.randn(3, 9))
    assert not any("Fusion of softmax rows" in str(t.get_provenance()) for t in thunder.last_traces(jitted))


def test_a_wide_softmax_of_aclnn_is_a_boundary():
    jitted = regions.jit(lambda x: torch.softmax(x * 0.5, -1) * 2.0)
    jitted(torch.randn(3, 300))
    assert "aclnn_softmax" in names(jitted)
    assert not regions.forward_regions(jitted)


def test_other_axes_and_narrower_dtypes_are_left():
    jitted = regions.jit(lambda x: torch.softmax(x * 0.5, 0) * 2.0)
    jitted(torch.randn(3, 9))
    # Dimension 0 is not the last: rows lie across memory, which the operator's own kernel reads as it is.
    assert not regions.forward_regions(jitted)
    jitted = regions.jit(lambda x: torch.softmax(x * 0.5, -1) * 2.0)
    jitted(torch.randn(3, 9, dtype=torch.float64))
    assert not regions.forward_regions(jitted)


def test_regions_are_convex(ascend):
    def function(s, w):
        p = torch.softmax(s * 0.5, -1)
        return p * (p @ w)

    jitted = check(function, torch.randn(2, 9, 9), torch.randn(9, 9), ascend=ascend)
    assert names(jitted).index("matmul") > names(jitted).index("TritonAscend0")
    assert names(jitted).count("mul") == 1
    assert inside(jitted).count("mul") == 1


def test_an_update_in_place_that_others_see_is_not_crossed():
    def function(x, counter):
        counter.add_(1.0)
        return torch.softmax(x * counter, -1)

    x, counter = torch.randn(3, 9), torch.ones(9)
    jitted = regions.jit(function)
    want = torch.softmax(x * 2.0, -1)
    torch.testing.assert_close(jitted(x, counter), want)
    assert counter.eq(2.0).all()


def test_an_update_in_place_of_an_intermediate_is_only_its_value(ascend):
    def function(a, b):
        s = a @ a.transpose(-1, -2)
        s += b
        return torch.softmax(s, -1)

    jitted = check(function, torch.randn(2, 9, 4), torch.randn(9, 9), ascend=ascend)
    assert "add" in inside(jitted)
    assert "copy_" not in names(jitted)


def test_a_region_that_outgrows_the_buffer_is_split_not_retried(ascend):
    def function(x, *ys):
        p = torch.softmax(x, -1)
        for y in ys:
            p = torch.tanh(p + y) * y
        return p

    ys = [torch.randn(4, 4096) for _ in range(6)]
    x = torch.randn(4, 4096)
    jitted = regions.jit(function, executors=TRITON_ONLY)
    with torch.no_grad():
        want = jitted(x, *ys)
        assert len(regions.forward_regions(jitted)) == 1
        outside = names(jitted).count("tanh")
        assert 0 < outside < 6, "some joined, the rest did not fit"
        regions.use_kernels(jitted)
        with ascend() as reports:
            torch.testing.assert_close(jitted(x, *ys), want, rtol=1e-5, atol=1e-6)
        assert all(r.fits and not r.retries for r in reports())
    assert len(reports()) >= 1


def test_wide_rows_of_triton_alone_fuse_while_they_fit(ascend):
    check(lambda x: torch.softmax(x * 0.5, -1) * 2.0, torch.randn(3, 4096), ascend=ascend, executors=TRITON_ONLY)
    jitted = regions.jit(lambda x: torch.softmax(x * 0.5, -1) * 2.0, executors=TRITON_ONLY)
    jitted(torch.randn(2, 60000))
    assert not regions.forward_regions(jitted), "no tile holds such a row"


# ---- training --------------------------------------------------------------------------------------------------------
def test_the_backward_recomputes_the_cheap_and_saves_the_rest():
    def function(s, m):
        return torch.softmax(torch.tanh(s * 0.1) * 30.0 + m, -1)

    jitted = regions.jit(function)
    s = torch.randn(2, 3, 9, 9, requires_grad=True)
    jitted(s, torch.randn(2, 1, 9, 9)).sum().backward()
    (forward,), (backward,) = regions.forward_regions(jitted), regions.backward_regions(jitted)
    assert len(forward.writes) == 1, "only the softmax is written, not the tanh"
    recomputed = [b.sym.name for b in thunder.last_backward_traces(jitted)[-1].bound_symbols if fusion.is_region(b)]
    assert recomputed == [backward.name]
    ops = [node.op for node in backward.lowered.region.nodes]
    assert "tanh" in ops
    assert "softmax" not in ops, "the softmax itself is saved"


def train(jitted, tensors, grad, ascend):
    """Result and gradients of a jitted function whose kernels have run."""
    jitted(*tensors)
    assert regions.use_kernels(jitted) > 0
    with ascend(), regions.without_bishengir():
        out = jitted(*tensors)
        return out, torch.autograd.grad(out, [t for t in tensors if t.requires_grad], grad)


def in_float32(s, m):
    """The softmax of Llama, T5 and Gemma-2: half-type scores, float32 inside, and back."""
    return torch.softmax(s * 0.1 + m, -1, dtype=torch.float32).to(s.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float32_softmax_of_half_type_scores_is_computed_again(dtype, ascend):
    jitted = regions.jit(in_float32)
    s = torch.randn(2, 3, 9, 9, dtype=dtype, requires_grad=True)
    m = torch.randn(2, 1, 9, 9, dtype=dtype)
    m[0, 0, 1] = float("-inf")
    expected = in_float32(s, m)
    grad = torch.randn_like(expected)
    out, (gradient,) = train(jitted, (s, m), grad, ascend)
    torch.testing.assert_close(out, expected, equal_nan=True)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected, s, grad), equal_nan=True)
    (forward,), (backward,) = regions.forward_regions(jitted), regions.backward_regions(jitted)
    assert len(forward.writes) == 1, "the result alone, in the scores' dtype"
    assert [node.op for node in backward.lowered.region.nodes].count("softmax") == 1
    assert {t.dtype for t in backward.lowered.region.inputs} == {dtype}, "nothing of float32 is kept"


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (in_float32, torch.float32),  # the scores are no smaller
        (lambda s, m: torch.softmax(s * 0.1 + m, -1), torch.bfloat16),  # the result is kept anyway
        (lambda s, m: torch.softmax((s * 0.1 + m).float(), -1), torch.bfloat16),  # its user keeps it
    ],
)
def test_what_is_not_smaller_is_saved(function, dtype):
    jitted = regions.jit(function)
    s = torch.randn(2, 3, 9, 9, dtype=dtype, requires_grad=True)
    jitted(s, torch.randn(2, 1, 9, 9, dtype=dtype)).sum().backward()
    (backward,) = regions.backward_regions(jitted)
    assert "softmax" not in [node.op for node in backward.lowered.region.nodes]


def test_an_update_inside_of_a_region_leaves_what_the_backward_computes_from():
    """T5's ``scores += bias``: the reference path and the kernels only take its value."""

    def function(q, bias):
        scores = torch.matmul(q, q.transpose(-1, -2))
        scores += bias
        return torch.softmax(scores.float(), dim=-1).type_as(scores) @ q

    jitted = regions.jit(function)
    q = torch.randn(2, 9, 9, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(1, 9, 9, dtype=torch.bfloat16)
    out, expected = jitted(q, bias), function(q, bias)
    (backward,) = regions.backward_regions(jitted)
    assert "softmax" in [node.op for node in backward.lowered.region.nodes]
    grad = torch.randn_like(out)
    torch.testing.assert_close(out, expected)
    gradients = [torch.autograd.grad(o, q, grad)[0] for o in (out, expected)]
    torch.testing.assert_close(*gradients, rtol=2**-6, atol=2**-6)


def test_no_softmax_is_computed_again_after_an_update_in_place():
    def function(s, m):
        out = torch.softmax(s * 0.1 + m, -1, dtype=torch.float32).to(s.dtype)
        m.mul_(2.0)
        return out

    jitted = regions.jit(function)
    s = torch.randn(2, 3, 9, 9, dtype=torch.bfloat16, requires_grad=True)
    m = torch.randn(2, 1, 9, 9, dtype=torch.bfloat16)
    eager_m = m.clone()
    out, expected = jitted(s, m), function(s, eager_m)
    grad = torch.randn_like(out)
    torch.testing.assert_close(m, eager_m)
    (backward,) = regions.backward_regions(jitted)
    assert "softmax" not in [node.op for node in backward.lowered.region.nodes]
    torch.testing.assert_close(*(torch.autograd.grad(o, s, grad)[0] for o in (out, expected)))


TEMPERED = [
    lambda x, t: torch.softmax(x * (t * 0.5), -1) * 2.0,
    lambda x, t: torch.softmax(x / (t * 0.5), -1) * 2.0,
    lambda x, t: torch.softmax(x * t.clamp(min=0.1), -1),
    lambda x, t: torch.softmax(x * torch.rsqrt(t + 1), -1),
    lambda x, t: torch.softmax(x * t, -1).sum() * t,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", TEMPERED)
@pytest.mark.parametrize("shape", [(64,), (2, 9)])
def test_what_thunder_calls_0d_and_is_not_stays_outside(function, shape, dtype, ascend):
    """A learned temperature: Thunder 0.2.6 forgets the sum in its gradient, which a mend adds. Eager's numbers, and no
    access is out of bounds."""
    x = torch.randn(shape, requires_grad=True, dtype=dtype)
    t = torch.tensor(0.7, requires_grad=True, dtype=dtype)
    jitted = regions.jit(function)
    want = function(x, t)
    grad = torch.randn_like(want)
    got, gradients = train(jitted, (x, t), grad, ascend)
    # A half-type temperature's gradient is a sum of up to 64 rounded terms that cancel.
    tolerance = {"rtol": 2e-2, "atol": 1e-1} if dtype in HALF else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(got, want, **tolerance)
    torch.testing.assert_close(gradients, torch.autograd.grad(want, (x, t), grad), **tolerance)


def test_a_wrong_shape_of_thunders_does_not_stop_the_compilation():
    """Thunder 0.2.6 has no gradient for a tensor divided by its own mean on the CPU; the forward runs."""

    def function(x):
        return torch.softmax(x / x.abs().mean(), -1)

    x = torch.randn(64, requires_grad=True)
    torch.testing.assert_close(regions.jit(function)(x), function(x))


def test_random_numbers_are_drawn_once_and_in_order():
    def function(x):
        p = torch.nn.functional.dropout(torch.softmax(x * 0.5, -1), 0.5)
        return torch.nn.functional.dropout(p + 1.0, 0.5)

    x = torch.randn(64, 64, requires_grad=True)
    plain, ours = thunder.jit(function, executors=[]), regions.jit(function)
    results = []
    for jitted in (plain, ours):
        torch.manual_seed(3)
        out = jitted(x)
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
        results.append((out, grad))
    torch.testing.assert_close(results[1], results[0])
    assert regions.forward_regions(ours)
    assert regions.backward_regions(ours)


def test_with_inductor_behind(monkeypatch):
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: function
    )  # its fusions as they are, without the compiler

    def function(a, b, m):
        return torch.softmax((a @ b) * 0.5 + m, -1) @ b.transpose(-1, -2) + 1.0

    a, b = (torch.randn(2, 9, 9, requires_grad=True) for _ in range(2))
    m = torch.randn(9)
    jitted = regions.jit(function, executors=[*regions.EXECUTORS, "torchcompile"])
    got, want = jitted(a, b, m), function(a, b, m)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), (a, b)), torch.autograd.grad(want.sum(), (a, b)))
    found = [n for n in names(jitted) if "Compile" in n or "Ascend" in n]
    assert found == ["TorchCompile0", "TritonAscend0", "TorchCompile1"]


# ---- options ---------------------------------------------------------------------------------------------------------
def test_rounding_follows_eager_unless_float32_is_allowed(ascend):
    def function(s, m):
        return torch.softmax(s * 0.3 + m, -1)

    s, m = torch.randn(8, 33).bfloat16() * 8, torch.randn(33).bfloat16()
    rounds = {}
    for inside_ in (False, True):
        jitted = regions.jit(function, fusion_float32_inside=inside_)
        with torch.no_grad():
            jitted(s, m)
            (region,) = regions.forward_regions(jitted)
            rounds[inside_] = sum(node.op == "cast" and node.dtype in HALF for node in region.lowered.region.nodes)
            regions.use_kernels(jitted)
            with ascend(), regions.without_bishengir():
                got = jitted(s, m)
        exact = torch.softmax(s.double() * 0.3 + m.double(), -1)
        error = (got.double() - exact).abs().max()
        eager = (function(s, m).double() - exact).abs().max()
        assert error <= 2**-9 if inside_ else error <= 1.01 * eager
    assert rounds == {False: 2, True: 0}


@pytest.mark.parametrize(
    ("given", "written"), [({}, 1), ({"realize_tail_bcast": False}, 0), ({"tail_bcast_min_vec": 4}, 0)]
)
def test_a_broadcast_over_short_rows_is_written_out_once(given, written, ascend):
    def function(s, b):
        p = torch.softmax(s * 0.5 + b, -1)
        return (p @ p.transpose(-1, -2)).sum() + (torch.softmax(s * b, -1) + b).sum()

    s, b = torch.randn(6, 5, 4), torch.randn(6, 5, 1)
    jitted = check(function, s, b, ascend=ascend, count=2, **given)
    assert names(jitted).count("contiguous") == written
    for region in regions.forward_regions(jitted):
        spread = [t for t in region.lowered.region.inputs if COLUMN not in t.places]
        assert bool(spread) != bool(written)
    jitted = check(lambda s, b: torch.softmax(s * 0.5 + b, -1), torch.randn(6, 9), torch.randn(6, 1), ascend=ascend)
    assert "contiguous" not in names(jitted), "nine columns are not short"


# ---- source and report -----------------------------------------------------------------------------------------------
def test_the_source_is_deterministic_and_the_same_for_every_layer():
    def function(a, b):
        p = torch.softmax(a * 0.5 + 1.0, -1)
        return torch.softmax((p @ b) * 0.5 + 1.0, -1)

    sources = []
    for _ in range(2):
        jitted = regions.jit(function)
        jitted(torch.randn(2, 9, 9), torch.randn(2, 9, 9))
        sources += [region.kernel.source() for region in regions.forward_regions(jitted)]
    assert len(sources) == 4
    assert len(set(sources)) == 1
    assert codegen.load(sources[0]) is codegen.load(sources[1])
    assert codegen.path_of(sources[0]).read_text() == sources[0]


def test_the_report_tells_what_a_region_reads_writes_and_why_it_ends():
    def function(a, b, m):
        return torch.softmax((a @ b) * 0.5 + m, -1) @ b

    a, b, m = torch.randn(2, 9, 9), torch.randn(2, 9, 9), torch.randn(2, 1, 9)
    jitted = regions.jit(function)
    jitted(a, b, m)
    (info,) = fusion.regions(thunder.last_traces(jitted)[-1])
    assert (info.name, info.rows, info.width) == ("TritonAscend0", 18, 9)
    assert [shape for _, _, shape in info.inputs] == [(2, 9, 9), (2, 1, 9)]
    assert (info.bytes_read, info.bytes_written) == (4 * (162 + 18), 4 * 162)
    assert info.bytes_unfused > 2 * (info.bytes_read + info.bytes_written)
    assert any("matmul" in reason for reason in info.ends)
    assert "def fused_rows" in info.source
    assert not info.on_device
    text = str(thunder.last_traces(jitted)[-1])
    assert "TritonAscend0(" in text
    assert "# t" in text.split("TritonAscend0(")[1], "the fused line shows its symbols"


# ---- random ----------------------------------------------------------------------------------------------------------
WITH_A_REGION = (1, 2, 3, 4, 5, 8, 9, 10, 11)


@pytest.mark.parametrize("seed", WITH_A_REGION)
def test_random_regions(seed, ascend):
    with ascend(), regions.without_bishengir():
        assert random_regions.check(seed) >= 1


@pytest.mark.parametrize("seed", range(30))
def test_no_fault_in_a_random_region_goes_unnoticed(seed):
    """The comparison itself: a result scaled by 1.05, with two elements swapped or one dropped is refused."""
    assert not random_regions.missed(seed)


# ---- constants ------------------------------------------------------------------------------------------------------
CONSTANTS = {
    "rounded, then float32": lambda x: torch.softmax(x * torch.full_like(x, 2.7182).bfloat16().float(), -1),
    "half, then float32": lambda x: torch.softmax(x * torch.full_like(x, 2.7182).half().float(), -1),
    "to bool": lambda x: torch.softmax(x * torch.full_like(x, 2.7).to(torch.bool), -1),
    "to int": lambda x: torch.softmax(x * torch.full_like(x, 2.7).to(torch.int64), -1),
    "power": lambda x: torch.softmax(x * torch.full_like(x, 2.7) ** -2, -1),
    "arithmetic": lambda x: torch.softmax(x * (1.0 / torch.full_like(x, 3.3)) + torch.full_like(x, 0.1), -1),
}


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_is_what_its_dtype_holds(constant, ascend):
    torch.manual_seed(0)
    x = torch.randn(16, 32)
    jitted = regions.jit(CONSTANTS[constant])
    jitted(x)
    assert regions.use_kernels(jitted) == 1
    with ascend(), regions.without_bishengir():
        torch.testing.assert_close(jitted(x), CONSTANTS[constant](x), rtol=2e-6, atol=1e-7)


# ---- found by mutants ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ends", [(5, 32, 3), (0, 18, 2), (3, 12, 1), (9, 0, -1)])
def test_columns_count_from_any_start_in_any_step(ends, ascend):
    def function(x):
        columns = torch.arange(*ends)
        return torch.softmax(torch.where(columns > (ends[0] + ends[1]) // 2, x * 0.5, -1.0) + columns * 0.1, -1)

    check(function, torch.randn(4, 9), ascend=ascend)


def test_a_new_dimension_of_one_is_no_axis_of_the_rows(ascend):
    x = torch.randn(4, 9)
    jitted = check(lambda x: torch.softmax(x * 0.5, -1).unsqueeze(0) * 2.0, x, ascend=ascend)
    assert names(jitted) == ["unpack_trivial", "TritonAscend0", "python_return"]
    (region,) = regions.forward_regions(jitted)
    assert region.lowered.region.outputs[0][1].places == (None, (1, 4), COLUMN)


def test_three_outer_axes_of_different_lengths(ascend):
    s, b, c = torch.randn(2, 3, 4, 9, 9), torch.randn(2, 1, 4, 1, 9), torch.randn(1, 3, 1, 9, 9)
    check(lambda s, b, c: torch.softmax(s * 0.5 + b, -1) * c, s, b, c, ascend=ascend)


def test_tiles_and_how_many_are_alive():
    """The softmax holds the row's exponentials; it is alive while tanh has an intermediate of its own."""
    jitted = regions.jit(lambda x, b, c: torch.softmax(x * 0.5 + b * c, -1) * torch.tanh(x))
    jitted(torch.randn(4, 9), torch.randn(9), torch.randn(1))
    (found,) = regions.forward_regions(jitted)
    region = found.lowered.region
    tiles = [node.op for node, tile in zip(region.nodes, region.is_tile, strict=True) if tile]
    assert sorted(tiles) == ["add", "input", "mul", "mul", "softmax", "tanh"]
    assert [region.input_is_tile(i) for i in range(3)] == [
        COLUMN in t.places and len(t.shape) == 2 for t in region.inputs
    ]
    assert region.live == 3


def test_a_loaded_tile_is_not_counted_among_the_live_ones():
    """Three tiles wait for the softmax and its exponentials; x waits too, but as a loaded tile."""
    jitted = regions.jit(lambda x: torch.exp(x) * (torch.abs(x) * (torch.neg(x) * torch.softmax(x * 0.5, -1))))
    jitted(torch.randn(4, 9))
    (found,) = regions.forward_regions(jitted)
    assert found.lowered.region.live == 5


@pytest.mark.parametrize("column", [lambda m: m.float().reshape(2, 6, 1), lambda m: (m * 2).float().view(2, 6, 1) + 1])
def test_what_is_made_of_a_column_before_it_is_spread_over_short_rows_stays_outside(column, ascend):
    """What is written out is the column that the rows meet, not one still to be cast, computed with or viewed."""

    def function(x, m):
        return torch.softmax(x * column(m), -1) * 2.0

    x, m = torch.randn(2, 6, 4, requires_grad=True), torch.randn(2, 6, 1).bfloat16()
    jitted = regions.jit(function)
    torch.testing.assert_close(jitted(x, m), function(x, m))  # the reference path
    (region,) = regions.forward_regions(jitted)
    assert all(COLUMN in t.places for t in region.lowered.region.inputs)
    assert regions.use_kernels(jitted) == 2  # forward and backward
    with ascend(), regions.without_bishengir():
        torch.testing.assert_close(jitted(x, m), function(x, m))


def test_a_dimension_of_one_is_dropped_behind_the_softmax(ascend):
    def function(x):
        p = torch.softmax(x * 0.5, -1)
        return p.squeeze(1) * 2.0, p.amax(-1, keepdim=True).squeeze(-1) + 1.0

    jitted = check(function, torch.randn(4, 1, 9), ascend=ascend)
    assert names(jitted) == ["unpack_trivial", "TritonAscend0", "python_return"]


def test_two_columns_are_counted_too(ascend):
    jitted = check(lambda x: torch.softmax(x * (torch.arange(2) + 3), -1), torch.randn(4, 2), ascend=ascend)
    assert "arange" in inside(jitted)


@pytest.mark.parametrize(("last", "joins"), [(2**31 - 1, True), (2**31, False)])
def test_numbers_of_columns_fit_int32(last, joins, ascend):
    def function(x):
        return torch.softmax(torch.where(torch.arange(last - 8, last + 1) > last - 4, x * 0.5, -1.0), -1)

    jitted = check(function, torch.randn(4, 9), ascend=ascend)
    assert ("arange" in inside(jitted)) == joins
