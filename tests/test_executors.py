"""The softmax family through both executors: every spelling, dtype, axis and layout, and the contexts of autograd."""

import itertools
import math

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from traces import EXECUTORS, assert_same, backward_symbols, forward_symbols, jit, run

INF, NAN = math.inf, math.nan
FAMILY = {"softmax": torch.softmax, "log_softmax": torch.log_softmax, "safe_softmax": torch._safe_softmax}
# Both routes at one width: a bound below it, and no routing by width.
ROUTES = {
    "aclnn": {"softmax_aclnn_max_fuse_numel": 1},
    "triton_ascend": {"softmax_aclnn_max_fuse_numel": 0, "log_softmax_aclnn_fallback": False},
}

SPELLINGS = {
    "softmax": [
        lambda x: torch.softmax(x, 1),
        lambda x: torch.softmax(input=x, dim=1),
        lambda x: torch.softmax(x, -2, torch.float64),
        lambda x: torch.softmax(x, dim=0, dtype=torch.float64),
        lambda x: torch.special.softmax(x, 1),
        lambda x: torch.special.softmax(x, 1, dtype=torch.float64),
        lambda x: x.softmax(-1),
        lambda x: x.softmax(dim=-1),
        lambda x: x.softmax(1, torch.float64),
        lambda x: x.softmax(dim=1, dtype=torch.float64),
        lambda x: F.softmax(x, 1),
        lambda x: F.softmax(input=x, dim=1),
        lambda x: F.softmax(x, 1, 5),
        lambda x: F.softmax(x, dim=1, _stacklevel=5, dtype=torch.float64),
        lambda x: F.softmax(x),
        lambda x: F.softmin(x, 1),
        lambda x: F.softmin(x),
        lambda x: F.softmin(input=x, dim=0, dtype=torch.float64),
    ],
    "log_softmax": [
        lambda x: torch.log_softmax(x, 1),
        lambda x: torch.log_softmax(input=x, dim=-1, dtype=torch.float64),
        lambda x: torch.special.log_softmax(x, 0),
        lambda x: x.log_softmax(-1),
        lambda x: x.log_softmax(1, torch.float64),
        lambda x: F.log_softmax(x, 1),
        lambda x: F.log_softmax(input=x, dim=1),
        lambda x: F.log_softmax(x, dim=1, _stacklevel=5),
        lambda x: F.log_softmax(x),
    ],
    "safe_softmax": [
        lambda x: torch._safe_softmax(x, 1),
        lambda x: torch._safe_softmax(input=x, dim=-1),
        lambda x: torch._safe_softmax(x, 1, torch.float64),
        lambda x: torch.ops.aten._safe_softmax(x, -1),
        lambda x: torch.ops.aten._safe_softmax.default(x, -1),
    ],
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize(
    ("op", "number"), [(op, i) for op, functions in SPELLINGS.items() for i in range(len(functions))]
)
@pytest.mark.parametrize("route", ROUTES)
def test_every_spelling_is_claimed(op, number, route):
    fn = SPELLINGS[op][number]
    x = torch.randn(2, 3, 4, requires_grad=True)
    jitted = jit(fn, **ROUTES[route])
    assert_same(run(jitted, x), run(fn, x), rtol=1e-6, atol=1e-7)
    assert [s for s in forward_symbols(jitted) if "softmax" in s] == [f"{route}_{op}"]
    assert [s for s in backward_symbols(jitted) if "softmax" in s] == [f"{route}_{op}_backward"]


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize(
    "module",
    [nn.Softmax(1), nn.Softmax(), nn.LogSoftmax(-1), nn.LogSoftmax(), nn.Softmin(0), nn.Softmin(), nn.Softmax2d()],
    ids=repr,
)
def test_modules(module):
    x = torch.randn(2, 3, 4, 5)
    jitted = jit(module)
    assert_same(jitted(x), module(x))
    assert len([s for s in forward_symbols(jitted) if "softmax" in s]) == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("result", [None, torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(route, op, dtype, result):
    def fn(x):
        return FAMILY[op](x, -1, dtype=result)

    def eager(x):  # eager's _safe_softmax has no gradient from float32 to float16; without dead rows it is a softmax
        return (torch.softmax if op == "safe_softmax" else FAMILY[op])(x, -1, dtype=result)

    x = (torch.randn(4, 33) * 3).to(dtype).requires_grad_()
    cotangent = torch.randn(4, 33).to(result or dtype)
    jitted = jit(fn, **ROUTES[route])
    assert_same(run(jitted, x, cotangent=cotangent), run(eager, x, cotangent=cotangent))
    assert f"{route}_{op}" in forward_symbols(jitted)
    assert f"{route}_{op}_backward" in backward_symbols(jitted)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_integers_are_cast_before_compute(op):
    x = torch.tensor([[2**24, 2**24 + 1], [3, 3]])
    jitted = jit(lambda x: FAMILY[op](x, -1, dtype=torch.float64), **ROUTES["aclnn"])
    assert_same(jitted(x), FAMILY[op](x, -1, dtype=torch.float64))
    assert f"aclnn_{op}" in forward_symbols(jitted)
    with pytest.raises((NotImplementedError, RuntimeError)):
        jit(lambda x: FAMILY[op](x, -1))(x)


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("route", ROUTES)
def test_every_rank_and_axis(op, route):
    for rank in (0, 1, 2, 4, 6):
        x = torch.randn((3,) + (2,) * (rank - 1) if rank else (), requires_grad=True)
        for dim in range(-max(rank, 1), max(rank, 1)):
            jitted = jit(lambda x, d=dim: FAMILY[op](x, d), **ROUTES[route])
            assert_same(run(jitted, x), run(lambda x, d=dim: FAMILY[op](x, d), x))
            assert len([s for s in forward_symbols(jitted) if "softmax" in s]) == 1


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("dim", [3, -4, 100])
def test_an_axis_out_of_range_is_an_error(op, dim):
    with pytest.raises((IndexError, RuntimeError, ValueError), match=r"(?i)dim"):
        jit(lambda x: FAMILY[op](x, dim))(torch.randn(2, 3, 4))


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,), (2, 0, 4), (4, 0, 0)])
def test_empty(op, shape):
    for dim in range(-len(shape), len(shape)):
        for dtype in (None, torch.float64):
            x = torch.zeros(shape, requires_grad=True)
            jitted = jit(lambda x, d=dim, t=dtype: FAMILY[op](x, d, dtype=t))
            (out, grads), want = run(jitted, x), run(lambda x, d=dim, t=dtype: FAMILY[op](x, d, dtype=t), x)
            assert_same((out, grads), want)
            assert out.requires_grad


def layouts():
    base = torch.randn(6, 8)
    yield "transposed", base.t()
    yield "every second column", base[:, ::2]
    yield "offset", base[1:4, 3:7]
    yield "expanded rows", base[:1].expand(6, 8)
    yield "expanded columns", base[:, :1].expand(6, 8)
    yield "permuted", torch.randn(2, 3, 4).permute(2, 0, 1)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("op", "dim"), itertools.product(FAMILY, (0, -1)))
def test_strided_and_expanded_inputs(op, dim, route):
    jitted = jit(lambda x: FAMILY[op](x, dim), **ROUTES[route])
    for name, x in layouts():
        out = jitted(x)
        assert_same(out, FAMILY[op](x, dim))
        assert out.stride() == FAMILY[op](x, dim).stride(), name


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("op", FAMILY)
def test_expanded_cotangents(op, route):
    x = torch.randn(5, 7, requires_grad=True)
    cotangent = torch.randn(5, 1).expand(5, 7)
    got = run(jit(lambda x: FAMILY[op](x, -1), **ROUTES[route]), x, cotangent=cotangent)
    assert_same(got, run(lambda x: FAMILY[op](x, -1), x, cotangent=cotangent), rtol=1e-6, atol=1e-7)


ROWS = torch.tensor(
    [[-INF, -INF, -INF], [NAN, -INF, -INF], [INF, -INF, -INF], [INF, 0.0, 1.0], [-INF, 0.0, 1.0], [0.0, 1.0, 2.0],
     [NAN, NAN, NAN], [torch.finfo(torch.float16).min] * 3]
)  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_of_infinities_and_nan(op, route, dtype):
    x = ROWS.to(dtype).requires_grad_()
    cotangent = torch.tensor([[1.0, -2.0, 0.5]], dtype=dtype).expand(len(ROWS), 3)
    jitted = jit(lambda x: FAMILY[op](x, -1), **ROUTES[route])
    out, (grad,) = run(jitted, x, cotangent=cotangent)
    assert_same((out, [grad]), run(lambda x: FAMILY[op](x, -1), x, cotangent=cotangent))
    if op == "safe_softmax":
        assert (out[0] == 0).all()
        assert (grad[0] == 0).all()
        assert out[1].isnan().all()
    assert f"{route}_{op}" in forward_symbols(jitted)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("route", ROUTES)
def test_gradcheck(op, route):
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(jit(lambda x: FAMILY[op](x, -1), **ROUTES[route]), x)


@pytest.mark.parametrize("op", FAMILY)
def test_contexts_without_gradient(op):
    x = torch.randn(3, 5, requires_grad=True)
    jitted = jit(lambda x: FAMILY[op](x, -1))
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert not jitted(x).requires_grad
    assert jitted(x).requires_grad


@pytest.mark.parametrize("op", FAMILY)
def test_retain_graph(op):
    x = torch.randn(3, 5, requires_grad=True)
    out = jit(lambda x: FAMILY[op](x, -1))(x)
    cotangent = torch.randn(3, 5)
    out.backward(cotangent, retain_graph=True)
    once = x.grad.clone()
    out.backward(cotangent)
    assert_same(x.grad, 2 * once)


@pytest.mark.parametrize("op", FAMILY)
def test_activation_checkpointing_recomputes_the_claimed_symbol(op):
    def fn(x):
        return checkpoint(lambda x: FAMILY[op](x * 2, -1).cos(), x, use_reentrant=False)

    x = torch.randn(3, 5, requires_grad=True)
    jitted = jit(fn)
    assert_same(run(jitted, x), run(fn, x), rtol=1e-6, atol=1e-7)
    claimed = [s for s in backward_symbols(jitted) if s.endswith(f"_{op}")]
    assert len(claimed) == 1


@pytest.mark.parametrize("op", FAMILY)
def test_autocast_on_the_cpu_leaves_the_softmax_as_eager_does(op):
    def fn(x, w):
        return FAMILY[op](x @ w, -1)

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        want, got = fn(x, w), jit(fn)(x, w)
    assert got.dtype == want.dtype == torch.bfloat16
    assert_same(got, want, rtol=2e-2, atol=2e-2)


def test_the_output_is_all_that_the_backward_saves():
    x = torch.randn(4, 300, requires_grad=True)
    jitted = jit(lambda x: torch.softmax(x, -1))
    out = jitted(x)
    saved = out.grad_fn.saved_tensors
    assert [t.data_ptr() for t in saved] == [out.data_ptr()]


def test_the_cross_entropy_of_a_training_step():
    logits = torch.randn(4, 7, requires_grad=True)
    target = torch.tensor([1, -100, 0, 6])
    jitted = jit(lambda x, t: F.cross_entropy(x, t))
    assert_same(run(jitted, logits, target), run(F.cross_entropy, logits, target), rtol=1e-6, atol=1e-7)
    assert "aclnn_log_softmax" in forward_symbols(jitted)
    assert "aclnn_log_softmax_backward" in backward_symbols(jitted)


def test_executors_are_registered_by_name():
    x = torch.randn(2, 3)
    jitted = thunder.jit(lambda x: torch.softmax(x, -1), executors=["aclnn", "triton_ascend"])
    assert_same(jitted(x), torch.softmax(x, -1))
    assert "triton_ascend_softmax" in forward_symbols(jitted)


@pytest.mark.parametrize("executors", [EXECUTORS[:1], EXECUTORS[1:], EXECUTORS[::-1]])
def test_other_lists_of_executors(executors):
    def fn(x, y):
        return torch.softmax(x, -1) + torch.softmax(y, -1).sum()

    x, y = torch.randn(2, 8), torch.randn(2, 999)
    jitted = jit(fn, executors=executors)
    assert_same(jitted(x, y), fn(x, y))
    names = [s for s in forward_symbols(jitted) if "softmax" in s]
    first = executors[0].name
    assert names == [f"{first}_softmax"] * 2


def test_a_trace_is_a_program_that_runs():
    x = torch.randn(2, 300)
    jitted = jit(lambda x: torch.softmax(x, -1, dtype=torch.float64))
    jitted(x)
    trace = thunder.last_traces(jitted)[-1]
    assert "aclnn_softmax(x, -1, torch.float64)" in str(trace)
    assert_same(trace.python_callable()(x)[0], torch.softmax(x, -1, dtype=torch.float64))
