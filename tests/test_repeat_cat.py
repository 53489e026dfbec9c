"""RepeatCat: which cats and stacks it rewrites, that nothing else changes, and what it leaves for readers of the trace.

Every rewrite is tried as a transform and with the executors alone; both must agree with eager exactly.
"""

from __future__ import annotations

import itertools

import pytest
import thunder
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thunder.dynamo import thunderfx
from traces import EXECUTORS, assert_same, backward_symbols, forward_symbols, run
from traces import jit as jit_with_executors

import thunder_npu
from thunder_npu.transforms import RepeatCat, decisions

WAYS = {
    "transform": lambda fn, **options: thunder.jit(fn, transforms=[RepeatCat()], **options),
    "executors": jit_with_executors,
}
CONCATENATIONS = {"cat", "stack"}


@pytest.fixture(params=WAYS)
def jit(request):
    return WAYS[request.param]


def randn(*shape, seed=0, **kw):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **kw)


def check(jit, fn, *tensors, **tolerance):
    """``fn`` under ``jit`` equals eager, forward and backward. Returns the compiled function, for its traces."""
    jitted = jit(fn)
    eager, _ = run(fn, *tensors)
    cotangent = randn(*eager.shape, seed=7).to(eager.dtype)
    got, got_grads = run(jitted, *tensors, cotangent=cotangent)
    want, want_grads = run(fn, *tensors, cotangent=cotangent)
    assert_same(got, want)
    assert got.is_contiguous()
    assert_same(got_grads, want_grads, **(tolerance or {"rtol": 1e-12, "atol": 1e-12}))
    return jitted


# fn(x, y), and how many cats must be left in the trace: the period of a sequence needs one
REWRITTEN = {
    "pair": (lambda x, y: torch.cat((x, x), -1), 0),
    "triple on axis 0": (lambda x, y: torch.cat([x, x, x]), 0),
    "middle axis": (lambda x, y: torch.cat((x, x), dim=1), 0),
    "periodic": (lambda x, y: torch.cat([x, y, x, y], 1), 1),
    "periodic, three times": (lambda x, y: torch.cat([x, y, y] * 3, -2), 1),
    "nested, same axis": (lambda x, y: torch.cat([torch.cat([x, x]), torch.cat([x, x])]), 0),
    "nested, other axis": (lambda x, y: torch.cat([torch.cat([x, x], 0)] * 3, 2), 0),
    "nested, three axes": (lambda x, y: torch.cat([torch.cat([torch.cat([x, x], 0)] * 2, 1)] * 2, 2), 0),
    "unequal repeats of one tensor": (lambda x, y: torch.cat([torch.cat([x, x]), x]), 0),
    "equal cats": (lambda x, y: torch.cat([torch.cat([x, y]), torch.cat([x, y])]), 1),
    "stack in front": (lambda x, y: torch.stack([x, x]), 0),
    "stack behind": (lambda x, y: torch.stack((x, x, x), -1), 0),
    "stack of repeats": (lambda x, y: torch.stack([torch.cat([x, x], 1)] * 2, 1), 0),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_repeats_become_expand(jit, case):
    fn, cats_left = REWRITTEN[case]
    x, y = (randn(2, 3, 4, seed=s, dtype=torch.float64, requires_grad=True) for s in (0, 1))
    jitted = check(jit, fn, x, y)
    symbols = forward_symbols(jitted)
    assert sum(s in CONCATENATIONS for s in symbols) == cats_left
    assert "expand" in symbols
    assert any(d.done for d in decisions(jitted))


@pytest.mark.parametrize(
    ("fn", "axes"),
    [
        (lambda x: torch.cat([x] * 5, 1), [1]),
        (lambda x: torch.cat([torch.cat([x, x], 0)] * 2, 2), [0, 3]),
        (lambda x: torch.stack([x] * 4, 1), 1),
    ],
)
def test_backward_is_one_sum(jit, fn, axes):
    """n slices and n - 1 additions in plain Thunder; here one sum, over the axes that were expanded and no others."""
    jitted = check(jit, fn, randn(2, 3, 4, dtype=torch.float64, requires_grad=True))
    symbols = backward_symbols(jitted)
    assert symbols.count("sum") == 1
    assert not {"add", "torch_slice_prim_impl", "pad"} & set(symbols)
    (total,) = (b for b in thunder.last_backward_traces(jitted)[-1].bound_symbols if b.sym.name == "sum")
    assert total.args[1] == axes


def test_repeats_of_repeats_are_copied_once(jit):
    """One expand and one copy for three nested cats, and the inner ones are gone."""
    jitted = jit(lambda x: torch.cat([torch.cat([torch.cat([x, x])] * 2)] * 2, 1))
    jitted(randn(2, 3))
    assert [s for s in forward_symbols(jitted) if s in ("expand", "contiguous")] == ["expand", "contiguous"]


# Trees of cat and stack over two leaves: whatever they repeat, the result is eager's and so is the gradient.
LEAF = st.sampled_from(["x", "y"])
TREE = st.recursive(LEAF, lambda t: st.tuples(st.integers(-2, 1), st.lists(t, min_size=1, max_size=4)), max_leaves=8)


def _grow(tree, leaves):
    """The tensor that ``tree`` describes; operands that do not fit are narrowed first, which gives new tensors."""
    if isinstance(tree, str):
        return leaves[tree]
    dim, operands = tree
    tensors = [_grow(t, leaves) for t in operands]
    other = 1 - dim % 2
    size = min(t.shape[other] for t in tensors)
    return torch.cat([t if t.shape[other] == size else t.narrow(other, 0, size) for t in tensors], dim)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8, deadline=None)
@given(tree=TREE, rows=st.integers(1, 3), columns=st.integers(1, 3))  # of empty tensors Thunder has no backward
def test_any_tree_of_cats(way, tree, rows, columns):
    x, y = (randn(rows, columns, seed=s, dtype=torch.float64, requires_grad=True) for s in (0, 1))
    check(WAYS[way], lambda x, y: _grow((0, [tree]), {"x": x, "y": y}) * 1.0, x, y)


LEFT = {
    "partial": (lambda x, y: torch.cat([x, y, x]), "some operands repeat"),
    "partial stack": (lambda x, y: torch.stack([x, x, y]), "only some of its operands"),
    "negated": (lambda x, y: torch.cat([x, -x], -1), None),
    "equal values": (lambda x, y: torch.cat([x, x + 0, x.view(2, 3, 4)]), None),
    "one operand": (lambda x, y: torch.cat([x]), None),
    "different": (lambda x, y: torch.cat([x, y]), None),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_no_repeat_stays(jit, case):
    fn, reason = LEFT[case]
    x, y = (randn(2, 3, 4, seed=s, dtype=torch.float64, requires_grad=True) for s in (0, 1))
    jitted = check(jit, fn, x, y)
    symbols = forward_symbols(jitted)
    assert sum(s in CONCATENATIONS for s in symbols) == 1
    assert [reason in d.reason for d in decisions(jitted)] == ([] if reason is None else [True])
    assert not any(d.done for d in decisions(jitted))


@pytest.mark.parametrize("join", [torch.cat, torch.stack])
@pytest.mark.parametrize(
    "make",
    [
        lambda: randn(4, 1),
        lambda: randn(1, 4),
        lambda: randn(1),
        lambda: randn(4, 6)[:, :1].expand(4, 6),
        lambda: randn(1, 4).expand(3, 4),
        lambda: randn(6, 4).t(),
        lambda: randn(3, 8)[:, ::2],
        lambda: randn(0, 3),
        lambda: randn(3, 0),
    ],
)
def test_result_owns_its_memory(jit, make, join):
    """Size-1 axes, stride-0 inputs and empty tensors, where the reshape of an expanded tensor is a view: a write to the
    result changes neither the input nor a second element of the result, and autograd allows it."""
    for dim, requires_grad in itertools.product({0, -1}, (False, True)):
        x = make().requires_grad_(requires_grad)
        before, want = x.detach().clone(), join((x.detach(),) * 3, dim)
        out = jit(lambda x, dim=dim: join((x,) * 3, dim))(x)
        assert_same(out.detach(), want)
        assert out.is_contiguous()
        out.add_(torch.arange(out.numel()).view(out.shape))
        assert_same(out.detach(), want + torch.arange(out.numel()).view(out.shape))
        assert_same(x.detach(), before)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64],
)
def test_every_dtype(jit, dtype):
    x = (randn(2, 3) * 5).to(dtype)
    jitted = jit(lambda x: (torch.cat((x, x), 1), torch.stack((x, x, x), -1)))
    assert_same(jitted(x), (torch.cat((x, x), 1), torch.stack((x, x, x), -1)))
    assert not CONCATENATIONS & set(forward_symbols(jitted))


def test_writes_between_repeats(jit):
    """A repeat of an earlier value is not taken for a repeat of what was written into the same tensor since."""

    def fn(x):
        x = x * 1
        y = torch.cat([x, x])
        x.add_(1.0)
        again = torch.cat([y, y])
        y[:1].mul_(2.0)
        return torch.cat([again, torch.cat([y, y]), torch.cat([x, x]), torch.cat([x, x])])

    x = randn(2, 3)
    assert_same(jit(fn)(x), fn(x))


def test_result_written_in_the_function(jit):
    def fn(x):
        y = torch.cat((x, x))
        y[:2].mul_(2.0)
        y += 1.0
        return y, x

    x = randn(2, 3)
    assert_same(jit(fn)(x), fn(x))


def test_applying_it_twice_changes_nothing():
    jitted = thunder.jit(lambda x, y: torch.cat((x, x)) + torch.cat((x, y)) + torch.cat([x, y, x])[:4])
    jitted(randn(2, 3), randn(2, 3))
    trace = thunder.last_traces(jitted)[0]
    _, once, _ = RepeatCat().transform_traces_pre_prologue(None, trace, None)
    _, twice, _ = RepeatCat().transform_traces_pre_prologue(None, once, None)
    assert once is not trace
    assert twice is once


def test_executors_and_transform_together_decide_once():
    fn = lambda x, y: torch.cat((x, x)) + torch.cat([x, y, x])[:4]  # noqa: E731
    jitted = thunder.jit(fn, executors=EXECUTORS, transforms=[RepeatCat()])
    x, y = randn(2, 3), randn(2, 3, seed=1)
    assert_same(jitted(x, y), fn(x, y))
    assert [d.done for d in decisions(jitted)] == [True, False]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_symbolic_sizes(jit, requires_grad):
    fn = lambda x: torch.cat((x, x), -1) * 2  # noqa: E731
    jitted = jit(fn, cache="symbolic values")
    for shape in ((2, 3), (4, 5), (1, 1)):
        x = randn(*shape, requires_grad=requires_grad)
        out = jitted(x)
        assert_same(out, fn(x))
        if requires_grad:
            out.sum().backward()
            assert_same(x.grad, torch.full(shape, 4.0))
            break  # one shape for each entry: Thunder 0.2.6 does not reuse a backward with other sizes
    assert not CONCATENATIONS & set(forward_symbols(jitted))
    assert thunder.cache_misses(jitted) == 1


def test_dim_known_only_at_run_time():
    jitted = jit_with_executors(lambda x, dim: torch.cat((x, x), dim), cache="symbolic values")
    x = randn(2, 3)
    assert_same(jitted(x, 1), torch.cat((x, x), 1))
    assert [(d.done, d.reason) for d in decisions(jitted)] == [(False, "left, its dim is known only at run time")]


def test_option_off():
    jitted = jit_with_executors(lambda x: torch.cat((x, x)), repeat_cat=False)
    jitted(randn(2, 3))
    assert "cat" in forward_symbols(jitted)
    assert [(d.done, d.reason) for d in decisions(jitted)] == [(False, "left, the option repeat_cat is off")]


def test_no_grad_region(jit):
    def fn(x):
        with torch.no_grad():
            constant = torch.cat((x, x), 1)
        return torch.cat((x, x), 1) * constant

    x = randn(2, 3, requires_grad=True)
    check(jit, fn, x, rtol=1e-6, atol=1e-6)


def _repeated_in_checkpoint(x):
    def body(x):
        y = x.sin()
        return torch.cat((y, y), -1).cos()

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


@pytest.mark.parametrize("kwargs", [{"executors": EXECUTORS}, {"transforms": [RepeatCat()]}], ids=WAYS)
@pytest.mark.parametrize("compiler", [thunder.jit, thunderfx])
def test_inside_a_checkpoint(compiler, kwargs):
    compiled = compiler(_repeated_in_checkpoint, **kwargs)
    x = randn(2, 3, requires_grad=True)
    got, want = run(compiled, x), run(_repeated_in_checkpoint, x)
    assert_same(got, want, rtol=1e-6, atol=1e-6)
    functions = [compiled]
    if compiler is thunderfx:
        functions = [f for info in compiled._backend.subgraph_infos for f in info.thunder_compiled_fns]
    assert [d.done for f in functions for d in decisions(f)] == [True]
    assert all("cat" not in forward_symbols(f) for f in functions)


class TwoCopies(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.cat((self.linear(x),) * 2, -1)


def test_plugin():
    module = TwoCopies()
    compiled = thunder.compile(module, plugins=thunder_npu.NPU())
    x = randn(2, 3)
    assert_same(compiled(x), module(x), rtol=1e-6, atol=1e-6)
    assert "cat" not in forward_symbols(compiled)


def test_decisions_follow_the_cache():
    """The record belongs to the traces of the call that was made last, not to the last compilation."""
    jitted = jit_with_executors(lambda x, y, swap: torch.cat([x, y, x]) if swap else torch.cat([x, x, x]))
    x, y = randn(2, 3), randn(2, 3)
    done = []
    for swap in (False, True, False):
        jitted(x, y, swap)
        done.append([d.done for d in decisions(jitted)])
    assert done == [[True], [False], [True]]


def test_the_trace_says_what_was_done():
    jitted = jit_with_executors(lambda x: torch.cat((x, x)))
    jitted(randn(2, 3))
    (decision,) = decisions(jitted)
    assert decision.transform == "RepeatCat"
    assert f"test_repeat_cat.py:{test_the_trace_says_what_was_done.__code__.co_firstlineno + 1}" in decision.line
    assert f"# {decision}" in str(thunder.last_traces(jitted)[0])


# ---- the spellings that Thunder 0.2.6 lacks; they need the executors -------------------------------------------------
X, Y, EMPTY = randn(2, 3), randn(2, 3, seed=1), torch.empty(0)
SPELLINGS = {
    "axis": lambda x, y, e: torch.cat((x, x), axis=-1),
    "tensors by name": lambda x, y, e: torch.cat(tensors=(x, x), dim=1),
    "stack by name": lambda x, y, e: torch.stack(tensors=[x, x], dim=1),
    "stack axis": lambda x, y, e: torch.stack((x, x), axis=-1),
    "concat": lambda x, y, e: torch.concat((x, x), 1),
    "concatenate": lambda x, y, e: torch.concatenate([x, x], axis=1),
    "mixed dtypes": lambda x, y, e: torch.cat((x, x.half(), y.double())),
    "mixed dtypes, periodic": lambda x, y, e: torch.cat((x, y.double(), x, y.double())),
    "half with bfloat16": lambda x, y, e: torch.cat((x.half(), x.bfloat16())),
    "bool with int": lambda x, y, e: torch.cat((x > 0, (x > 0).long(), x > 0)),
    "stack of mixed dtypes": lambda x, y, e: torch.stack((x, x.double())),
    "legacy empty first": lambda x, y, e: torch.cat((e, x, x), -1),
    "legacy empty last": lambda x, y, e: torch.cat((x, x, e), dim=1),
    "legacy empty and one": lambda x, y, e: torch.cat((e, x), 0),
    "legacy empty promotes": lambda x, y, e: torch.cat((e.double(), x, x)),
    "only legacy empties": lambda x, y, e: torch.cat((e, e.double())),
    "empty beside vectors": lambda x, y, e: torch.cat((e, x[0], x[0])),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings(case):
    fn = SPELLINGS[case]
    assert_same(jit_with_executors(fn)(X, Y, EMPTY), fn(X, Y, EMPTY))


@pytest.mark.parametrize("container", [list, tuple])
def test_tensors_in_an_input_container(container):
    fn = lambda tensors: (torch.cat(tensors, 1), torch.stack(tensors))  # noqa: E731
    assert_same(jit_with_executors(fn)(container([X, Y])), fn([X, Y]))


def test_out_is_refused():
    with pytest.raises(NotImplementedError, match="out="):
        jit_with_executors(lambda x, out: torch.cat((x, x), out=out))(X, torch.empty(4, 3))


@pytest.mark.parametrize(
    ("operands", "error"), [(lambda x: (x, x[0]), RuntimeError), (lambda x: (x, x[:, :2]), RuntimeError)]
)
def test_impossible_cats_still_raise(operands, error):
    with pytest.raises(error):
        jit_with_executors(lambda x: torch.cat(operands(x)))(X)
