"""safe_softmax: the symbol and its gradient, the guards that become one, and the proofs that drop a guard.

Rows: dead, NaN beside -inf, +inf beside -inf, partly masked, finite. Every rewrite is tried as a transform and with the
executors alone. The gradient of a hand-written guard is NaN in a dead row in eager, and zero here: that is the purpose.
"""

from __future__ import annotations

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.dynamo import thunderfx
from traces import EXECUTORS, assert_same, backward_symbols, forward_symbols, run
from traces import jit as jit_with_executors

from thunder_npu.transforms import RepeatCat, SafeSoftmax, decisions
from thunder_npu.transforms.softmax import safe_softmax

INF, NAN = float("inf"), float("nan")
WAYS = {
    "transform": lambda fn, **options: thunder.jit(fn, transforms=[RepeatCat(), SafeSoftmax()], **options),
    "executors": jit_with_executors,
}
ROWS = torch.tensor([[-INF] * 3, [NAN, -INF, -INF], [INF, -INF, -INF], [1.0, 2.0, -INF], [0.5, -1.0, 3.0]])
COTANGENT = torch.tensor([[1.0, -2.0, 0.5]]).expand(5, 3)


@pytest.fixture(params=WAYS)
def jit(request):
    return WAYS[request.param]


def randn(*shape, seed=0, **kw):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **kw)


def softmaxes(jitted):
    """Which of softmax and safe_softmax the forward trace holds, whoever runs them."""
    kinds = {"softmax": "softmax", "safe_softmax": "safe"}
    names = [name.removeprefix("aclnn_").removeprefix("triton_ascend_").lstrip("_") for name in forward_symbols(jitted)]
    return [kinds[name] for name in names if name in kinds]


# ---- the symbol ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (torch._safe_softmax, torch.float64),
        (torch._safe_softmax, torch.float16),
        (torch.ops.aten._safe_softmax, torch.bfloat16),
        (torch.ops.aten._safe_softmax.default, torch.float32),
    ],
)
@pytest.mark.parametrize("compiler", [thunder.jit, *WAYS.values()], ids=["plain Thunder", *WAYS])
def test_symbol_equals_aten(compiler, function, dtype):
    """With nobody to claim it, it is ATen's operation; claimed or not, values and gradients are eager's."""
    x = ROWS.to(dtype).requires_grad_()
    cotangent = COTANGENT.to(dtype)
    fn = lambda x: function(x, -1)  # noqa: E731
    jitted = compiler(fn)
    (got, got_grads), (want, want_grads) = run(jitted, x, cotangent=cotangent), run(fn, x, cotangent=cotangent)
    assert_same(got, want)
    assert_same(got_grads[0], want_grads[0], rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    assert (got_grads[0][0] == 0).all()
    assert softmaxes(jitted) == ["safe"]
    assert "exp" not in forward_symbols(jitted)


@pytest.mark.parametrize("shape", [(), (0, 5), (5, 0), (1, 1), (2, 3, 4)])
@pytest.mark.parametrize("dim", [0, -1])
def test_symbol_shapes(shape, dim):
    x = randn(*shape, requires_grad=True)
    fn = lambda x: torch._safe_softmax(x, dim)  # noqa: E731
    assert_same(run(thunder.jit(fn), x), run(fn, x), rtol=1e-6, atol=1e-6)


def test_symbol_dtype_argument(jit):
    """dtype= is applied first, but rows are judged before: -1e30 is -inf in float16, and no mask."""
    x = torch.tensor([[-1e30, -1e30], [-INF, -INF], [1.0, 2.0]])
    for fn in (
        lambda x: torch._safe_softmax(x, -1, dtype=torch.float64),
        lambda x: torch._safe_softmax(input=x, dim=1, dtype=torch.float16),
        lambda x: torch.ops.aten._safe_softmax((x > 0).long(), 0, torch.float32),
    ):
        assert_same(jit(fn)(x), fn(x))
    half = x.half().requires_grad_()
    out, (grad,) = run(jit(lambda x: torch._safe_softmax(x, -1, torch.float32) * torch.tensor([1.0, 2.0])), half)
    assert (out.dtype, grad.dtype) == (torch.float32, torch.float16)
    assert (grad[1] == 0).all()


def test_symbol_errors():
    with pytest.raises(IndexError, match="out of range"):
        thunder.jit(lambda x: torch._safe_softmax(x, 2))(randn(2, 3))
    with pytest.raises(NotImplementedError, match="needs dtype="):
        thunder.jit(lambda x: torch._safe_softmax(x, 0))(torch.arange(3))


def test_symbol_saves_only_its_output():
    x = randn(4, 5, requires_grad=True)
    jitted = thunder.jit(lambda x: torch._safe_softmax(x * 2, -1))
    out = jitted(x)
    (saved,) = (t for t in out.grad_fn.saved_tensors if t is not None)
    assert saved.data_ptr() == out.data_ptr()


def test_symbol_reads_as_a_line():
    jitted = thunder.jit(lambda x: torch._safe_softmax(x, -1))
    jitted(randn(2, 3))
    first, last = (str(thunder.last_traces(jitted)[i]) for i in (0, -1))
    assert f"{safe_softmax.module.__name__}.safe_softmax(x, -1, None)" in first
    assert "= torch._safe_softmax(x, -1, None)" in last


# ---- guards written by hand ------------------------------------------------------------------------------------------
def _dead(x, dim=-1):
    return (x == -INF).all(dim, keepdim=True)


GUARDS = {
    "all ==": lambda x: torch.where(_dead(x), 0.0, torch.softmax(x, -1)),
    "all <=": lambda x: torch.where((x <= -INF).all(-1, keepdim=True), 0.0, torch.softmax(x, -1)),
    "isneginf": lambda x: torch.where(torch.all(torch.isneginf(x), dim=1, keepdim=True), 0, F.softmax(x, dim=-1)),
    "isinf and < 0": lambda x: torch.where((torch.isinf(x) & (x < 0)).all(-1).unsqueeze(-1), 0.0, x.softmax(-1)),
    "< 0 and isinf": lambda x: torch.where(torch.logical_and(x < 0, torch.isinf(x)).all(1, True), 0.0, x.softmax(1)),
    "not any !=": lambda x: torch.where(~(x != -INF).any(-1, keepdim=True), 0.0, torch.softmax(x, -1)),
    "any !=, branches swapped": lambda x: torch.where((x != -INF).any(-1, keepdim=True), torch.softmax(x, -1), 0.0),
    "masked_fill": lambda x: torch.softmax(x, -1).masked_fill(_dead(x), 0.0),
    "masked_fill, [:, None]": lambda x: torch.softmax(x, -1).masked_fill((x == -INF).all(-1)[:, None], 0),
    "masked_fill, [..., None]": lambda x: torch.masked_fill(x.softmax(-1), (x == -INF).all(-1)[..., None], 0),
    "masked_fill, view": lambda x: torch.softmax(x, -1).masked_fill((x == -INF).all(-1).view(-1, 1), 0),
    "expanded condition": lambda x: torch.where(_dead(x).expand_as(x), 0.0, torch.softmax(x, -1)),
    "amax": lambda x: torch.softmax(x, -1).masked_fill(x.amax(-1, keepdim=True) == -INF, 0.0),
    "zeros_like": lambda x: torch.where(_dead(x), torch.zeros_like(x), torch.softmax(x, -1)),
    "tensor scalar": lambda x: torch.where(_dead(x), torch.tensor(0.0), torch.softmax(x, -1)),
    "full": lambda x: torch.where(_dead(x), torch.full((1, 1), 0.0), torch.softmax(x, -1)),
    "-inf as a tensor": lambda x: torch.where((x == torch.tensor(-INF)).all(1, True), 0.0, torch.softmax(x, -1)),
    "as Inductor decomposes it": lambda x: torch.where(
        torch.logical_not(torch.any(torch.logical_not(torch.eq(x, -INF)), -1, True)),
        torch.full_like(x, 0.0),
        torch.softmax(x, -1),
    ),
    "axis 0 of a view": lambda x: torch.where(_dead(x.t(), 0), 0.0, torch.softmax(x.t(), 0)).t(),
    "dtype=": lambda x: torch.where(_dead(x), 0.0, torch.softmax(x, -1, dtype=torch.float64)).float(),
    "computed wider": lambda x: torch.where(_dead(x), 0.0, torch.softmax(x.double(), -1).to(x.dtype)),
}
NO_GUARDS = {
    "another mask": lambda x: torch.softmax(x, -1).masked_fill((x > 0).all(-1, keepdim=True), 0.0),
    "any instead of all": lambda x: torch.where((x == -INF).any(-1, keepdim=True), 0.0, torch.softmax(x, -1)),
    "no element above -inf: NaN rows too": lambda x: torch.where((x > -INF).any(-1, True), torch.softmax(x, -1), 0.0),
    "of another tensor": lambda x: torch.where(_dead(x + 1), 0.0, torch.softmax(x, -1)),
    "along another axis": lambda x: torch.where((x == -INF).all(0, keepdim=True), 0.0, torch.softmax(x, -1)),
    "wrong branch": lambda x: torch.where(_dead(x), torch.softmax(x, -1), 0.0),
    "by the softmax's NaN": lambda x: torch.softmax(x, -1).masked_fill(torch.softmax(x, -1).isnan(), 0.0),
    "promotes": lambda x: torch.where(_dead(x), torch.zeros(1, dtype=torch.float64), torch.softmax(x, -1)),
    "broadcasts": lambda x: torch.where(_dead(x), torch.zeros(2, 1, 1), torch.softmax(x, -1)),
    "fills ones": lambda x: torch.where(_dead(x), 1.0, torch.softmax(x, -1)),
}


@pytest.mark.parametrize("case", GUARDS)
def test_guard_becomes_one_symbol(jit, case):
    fn, x = GUARDS[case], ROWS.clone().requires_grad_()
    jitted = jit(fn)
    got, (grad,) = run(jitted, x, cotangent=COTANGENT)
    assert_same(got, fn(ROWS), rtol=1e-6, atol=1e-7)
    assert softmaxes(jitted) == ["safe"]
    assert not {"all", "any", "where", "masked_fill", "eq"} & set(forward_symbols(jitted))
    _, (want,) = run(lambda x: torch._safe_softmax(x, -1), x, cotangent=COTANGENT)
    assert_same(grad, want, rtol=1e-5, atol=1e-6)
    assert (grad[0] == 0).all()


@pytest.mark.parametrize("case", NO_GUARDS)
def test_what_is_no_guard_stays(jit, case):
    jitted = jit(NO_GUARDS[case])
    assert_same(jitted(ROWS), NO_GUARDS[case](ROWS), rtol=1e-6, atol=1e-7)
    assert "safe" not in softmaxes(jitted)
    assert all(not d.done and d.reason.startswith("left") for d in decisions(jitted))


def test_writes_between_the_parts_of_a_guard(jit):
    def fn(x):
        scores = x * 1
        probabilities, dead = torch.softmax(scores, -1), _dead(scores)
        scores.add_(1.0)
        stale = torch.where(dead, 0.0, probabilities)
        scores.masked_fill_(scores > 1, -INF)
        return stale, torch.where(_dead(scores), 0.0, torch.softmax(scores, -1))

    x = torch.tensor([[1.0, 2.0, 3.0], [-1.0, -2.0, 0.0]])
    jitted = jit(fn)
    assert_same(jitted(x), fn(x), rtol=1e-6, atol=1e-7)
    assert [d.done for d in decisions(jitted)] == [False, True]


@pytest.mark.parametrize("compiler", [thunder.jit, thunderfx])
@pytest.mark.parametrize("kwargs", [{"executors": EXECUTORS}, {"transforms": [SafeSoftmax()]}], ids=WAYS)
def test_guard_inside_a_checkpoint(compiler, kwargs):
    fn = lambda x: torch.utils.checkpoint.checkpoint(GUARDS["all =="], x * 1, use_reentrant=False)  # noqa: E731
    x = ROWS.clone().requires_grad_()
    got, (grad,) = run(compiler(fn, **kwargs), x, cotangent=COTANGENT)
    assert_same(got, fn(ROWS), rtol=1e-6, atol=1e-7)
    assert (grad[0] == 0).all()


def test_applying_it_twice_changes_nothing():
    jitted = thunder.jit(lambda x: GUARDS["all =="](x) + NO_GUARDS["another mask"](x) + torch._safe_softmax(x, -1))
    jitted(ROWS)
    trace = thunder.last_traces(jitted)[0]
    _, once, _ = SafeSoftmax().transform_traces_pre_prologue(None, trace, None)
    _, twice, _ = SafeSoftmax().transform_traces_pre_prologue(None, once, None)
    assert once is not trace
    assert twice is once


# ---- attention -------------------------------------------------------------------------------------------------------
Q, K, V = (randn(2, 2, 5, 8, seed=s, requires_grad=True) for s in range(3))
BOOLEAN = torch.ones(5, 5, dtype=torch.bool).tril().index_fill(0, torch.tensor([1, 3]), False)
MASKS = {
    "boolean": BOOLEAN,
    "additive": torch.zeros(5, 5).masked_fill(~BOOLEAN, -INF),
    "for each batch": torch.stack([BOOLEAN, torch.ones(5, 5, dtype=torch.bool)])[:, None],
    "over keys": torch.zeros(1, 5, dtype=torch.bool),
}


def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("mask", MASKS)
def test_masked_attention_in_training(jit, mask):
    """Thunder decomposes it with a plain softmax, and a query without keys is NaN; eager gives zeros, and so do we."""
    cotangent = randn(2, 2, 5, 8, seed=9)
    jitted = jit(lambda q, k, v: attend(q, k, v, MASKS[mask]))
    got = run(jitted, Q, K, V, cotangent=cotangent)
    want = run(lambda q, k, v: attend(q, k, v, MASKS[mask]), Q, K, V, cotangent=cotangent)
    assert_same(got, want, rtol=1e-5, atol=1e-5)
    assert softmaxes(jitted) == ["safe"]


def test_masked_attention_in_inference_stays_whole(jit):
    jitted = jit(attend)
    q, k, v = (t.detach() for t in (Q, K, V))
    assert_same(jitted(q, k, v, BOOLEAN), attend(q, k, v, BOOLEAN))
    assert "scaled_dot_product_attention" in forward_symbols(jitted)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), None),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), None),
        (lambda q, k, v: attend(q, k, v, torch.ones(5, 5, dtype=torch.bool).tril()), "leaves every one of the 5 rows"),
        (lambda q, k, v: attend(q, k, v, torch.zeros(5, 5) - 100.0), "adds no less than -100"),
        (lambda q, k, v: attend(q, k, v, torch.full((5, 5), -INF).triu(1)), "leaves every one of the 5 rows"),
    ],
)
def test_attention_that_needs_no_guard(jit, fn, reason):
    jitted = jit(fn)
    assert_same(run(jitted, Q, K, V), run(fn, Q, K, V), rtol=1e-5, atol=1e-5)
    assert softmaxes(jitted) == ["softmax"]
    assert [reason in d.reason for d in decisions(jitted)] == ([] if reason is None else [True])


# ---- proofs that a guard is dead -------------------------------------------------------------------------------------
N = 5


def guarded(x, dim=-1):
    return torch.where(_dead(x, dim), 0.0, torch.softmax(x, dim))


def causal(x, diagonal=0):
    return x.masked_fill(torch.ones(N, N).tril(diagonal) == 0, -INF)


DROPPED = {
    "tril == 0": lambda x: guarded(causal(x)),
    "wider tril": lambda x: guarded(causal(x, 2)),
    "~ tril of bool": lambda x: guarded(x.masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -INF)),
    "triu above the diagonal": lambda x: guarded(x.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -INF)),
    "where": lambda x: guarded(torch.where(torch.ones(N, N).bool().tril(), x, -INF)),
    "added -inf triangle": lambda x: guarded(x + torch.full((N, N), -INF).triu(1)),
    "added filled mask": lambda x: guarded(x + torch.zeros(N, N).masked_fill(torch.ones(N, N).tril() < 1, -INF)),
    "compared indices": lambda x: guarded(torch.where(torch.arange(N)[:, None] >= torch.arange(N)[None, :], x, -INF)),
    "compared indices, view": lambda x: guarded(x.masked_fill(torch.arange(N).view(-1, 1) < torch.arange(N), -INF)),
    "slice of a longer mask": lambda x: guarded(x.masked_fill(torch.ones(9, 9).tril()[None, None, :N, :N] == 0, -INF)),
    "viewed mask": lambda x: guarded(x.masked_fill(torch.ones(N, N).tril().view(1, 1, N, N) == 0, -INF)),
    "scaled products": lambda x: guarded(causal(x @ x.transpose(-1, -2) * 0.5)),
    "finite added mask": lambda x: guarded(x + (1.0 - (x > 0).float()) * -1e4),
    "finfo.min added": lambda x: guarded(x + torch.zeros(N, N).masked_fill(x[0, 0] > 0, torch.finfo(x.dtype).min)),
    "finite fill": lambda x: guarded(x.masked_fill(x > 0, torch.finfo(x.dtype).min)),
    "finite fill, any axis": lambda x: guarded(x.masked_fill(x > 0, -1e9), 1),
    "_safe_softmax": lambda x: torch._safe_softmax(causal(x), -1),
    "cast up": lambda x: guarded(causal(x).double()),
}
KEPT = {
    "nothing is known": guarded,
    "any mask": lambda x: guarded(x.masked_fill(x > 0, -INF)),
    "strict tril: row 0 is dead": lambda x: guarded(causal(x, -1)),
    "tril masked": lambda x: guarded(x.masked_fill(torch.ones(N, N).triu() == 1, -INF)),
    "strict comparison": lambda x: guarded(torch.where(torch.arange(N)[:, None] > torch.arange(N), x, -INF)),
    "along the rows' axis": lambda x: guarded(causal(x, -1), -2),
    "two masks": lambda x: guarded(causal(x.masked_fill(x > 0, -INF))),
    "mask written afterwards": lambda x: guarded((causal(x) * 1).masked_fill_(x > 0, -INF)),
    "slice that starts late": lambda x: guarded(x.masked_fill(torch.ones(9, 9).tril()[1:6, 2:7] == 0, -INF)),
    "shuffled indices": lambda x: guarded(
        torch.where(torch.arange(N)[torch.tensor([4, 3, 2, 1, 0])][:, None] >= torch.arange(N)[None, :] + 1, x, -INF)
    ),
    "scores with a logarithm": lambda x: guarded(causal(torch.log(x.relu()))),
    "scores divided by zero": lambda x: guarded(causal(x / 0.0)),
    "scores with a second additive mask": lambda x: guarded(x + x.relu().log() + torch.full((N, N), -INF).triu(1)),
    "float16 and finfo.min": lambda x: guarded(
        x.half() + torch.zeros(N, N, dtype=torch.float16).masked_fill(x[0, 0] > 0, torch.finfo(torch.float16).min)
    ),
    "finite fill below a finite mask": lambda x: guarded(_lowest(x) + _lowest(torch.zeros_like(x), x)),
    "finite fill scaled up": lambda x: guarded(causal(_lowest(x) * 2)),
    "finite fill divided by a fraction": lambda x: guarded(_lowest(x).div(0.5).masked_fill(x > 1, -1e4)),
    "finite fill cast down": lambda x: guarded(causal(_lowest(x).half())),
    "finite mask with alpha": lambda x: guarded(causal(torch.add(x, torch.full((N, N), -1e9), alpha=1e30))),
    "cast down": lambda x: guarded(x.half().masked_fill(x > 0, -INF)),
    "sums of sums": lambda x: guarded(_doubled(x, 60)),
}


def _lowest(x, mask=None):
    return x.masked_fill((x if mask is None else mask) > 0, torch.finfo(x.dtype).min)


def _doubled(x, times):
    for _ in range(times):
        x = x + x * 0.5
    return x


def reasons(jit, cases, x, **tolerance):
    """What was decided for each of ``cases``, compiled as one function whose results are eager's."""
    jitted = jit(lambda x: [fn(x) for fn in cases.values()])
    assert_same(jitted(x), [fn(x) for fn in cases.values()], **tolerance)
    return dict(zip(cases, [d.reason for d in decisions(jitted)], strict=True)), softmaxes(jitted)


def test_dead_guard_is_dropped(jit):
    reason, kinds = reasons(jit, DROPPED, randn(2, 2, N, N), rtol=1e-6, atol=1e-7)
    assert {case for case, why in reason.items() if not why.startswith("guard dropped, the ")} == set()
    assert kinds == ["softmax"] * len(DROPPED)


def test_guard_that_may_live_is_kept(jit):
    reason, kinds = reasons(jit, KEPT, randn(2, 2, N, N), rtol=1e-3, atol=1e-3)
    assert {case for case, why in reason.items() if why != "guard kept, a row may hold nothing but -inf"} == set()
    assert kinds == ["safe"] * len(KEPT)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (5, 3), (4, 4)])
def test_band_proof_is_exact(rows, columns):
    """tril and triu masks of any shape: the guard goes exactly where no row is dead, counted by hand."""
    triangles = [(f, diagonal) for f in (torch.tril, torch.triu) for diagonal in range(-3, 4)]

    def masked(f, diagonal):
        return lambda x: guarded(x.masked_fill(f(torch.ones(rows, columns), diagonal) == 0, -INF))

    cases = {f"{f.__name__} {diagonal}": masked(f, diagonal) for f, diagonal in triangles}
    reason, _ = reasons(WAYS["transform"], cases, randn(rows, columns), rtol=1e-6, atol=1e-7)
    dropped = [why.startswith("guard dropped") for why in reason.values()]
    assert dropped == [bool(f(torch.ones(rows, columns), diagonal).sum(1).all()) for f, diagonal in triangles]


# ---- options ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fn", [GUARDS["all =="], lambda x: torch._safe_softmax(x, -1)])
def test_options(jit, fn):
    kept = jit(fn)
    plain = jit(fn, safe_softmax_keep_guard=False)
    left = jit(fn, safe_softmax_aclnn_fallback=False)
    for jitted in (kept, left):
        assert_same(jitted(ROWS), fn(ROWS), rtol=1e-6, atol=1e-7)
    assert_same(plain(ROWS), torch.softmax(ROWS, -1), rtol=1e-6, atol=1e-7)
    assert softmaxes(kept) == ["safe"]
    assert softmaxes(plain) == ["softmax"]
    assert [d.reason for d in decisions(plain)] == ["guard dropped, the option safe_softmax_keep_guard is off"]
    assert [d.done for d in decisions(left)] == [False]
    assert not any(name.endswith("_ascend_safe_softmax") for name in forward_symbols(left))


def test_options_for_attention(jit):
    for option in ("safe_softmax_keep_guard", "safe_softmax_aclnn_fallback"):
        jitted = jit(lambda q, k, v: attend(q, k, v, BOOLEAN), **{option: False})
        run(jitted, Q, K, V)
        assert softmaxes(jitted) == ["softmax"]
        assert option in decisions(jitted)[0].reason


def test_executors_backward_symbol():
    x = ROWS.clone().requires_grad_()
    jitted = jit_with_executors(GUARDS["masked_fill"])
    run(jitted, x, cotangent=COTANGENT)
    assert [s for s in backward_symbols(jitted) if "softmax" in s] == ["triton_ascend_safe_softmax_backward"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_groups(training, masked):
    """enable_gqa, unknown to Thunder 0.2.6: queries of a group share their heads of key and value."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    mask = torch.rand(5, 7) < 0.7 if masked else None

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True, scale=0.2)

    inputs = [t.requires_grad_(training) for t in (q, k, v)]
    got, want = run(jit_with_executors(f), *inputs), run(f, *inputs)
    assert_same(got, want, rtol=1e-5, atol=1e-6)
