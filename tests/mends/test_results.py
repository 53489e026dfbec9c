"""Named results: PyTorch's own named tuples, inside a jitted function and where it returns them."""

from __future__ import annotations

import copy
import pickle

import pytest
import thunder
import torch
from torch.utils.checkpoint import checkpoint

from tests.traces import EXECUTORS, jit, run
from thunder_npu.mends import mend, results

CASES = {
    "max": lambda x: x.max(-1),
    "torch.max": lambda x: torch.max(x, 1, keepdim=True),
    "max_by_name": lambda x: torch.max(input=x, dim=0),
    "min": lambda x: x.min(dim=0),
    "topk": lambda x: x.topk(2),
    "sort": lambda x: torch.sort(x, descending=True),
    "median": lambda x: x.median(-1),
    "nanmedian": lambda x: torch.nanmedian(x, 0, True),
    "mode": lambda x: x.mode(-1),
    "kthvalue": lambda x: x.kthvalue(2),
    "cummax": lambda x: x.cummax(0),
    "cummin": lambda x: torch.cummin(x, -1),
    "aminmax": lambda x: x.aminmax(dim=0),
    "slogdet": lambda x: torch.linalg.slogdet(x),
    "svd": lambda x: torch.linalg.svd(x),
    "eigh": lambda x: torch.linalg.eigh(x),
}
# Eager has no derivative of aminmax, and none of the sign that slogdet gives first.
TRAINED = [name for name in CASES if name not in ("aminmax", "slogdet")]


def _x(requires_grad=False):
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(requires_grad)


@pytest.mark.parametrize("name", CASES)
def test_the_whole_and_each_of_its_names(name):
    fn = CASES[name]
    want, whole = fn(_x()), jit(fn)(_x())
    assert type(whole) is type(want)
    torch.testing.assert_close(tuple(whole), tuple(want))
    for field in type(want).__match_args__:
        torch.testing.assert_close(
            jit(lambda x, field=field: getattr(fn(x), field) * 1)(_x()), getattr(want, field) * 1
        )
    first, *_ = jit(lambda x: [*fn(x)])(_x())
    torch.testing.assert_close(first, want[0])


@pytest.mark.parametrize("name", TRAINED)
def test_training(name):
    fn = CASES[name]
    cotangent = torch.rand(fn(_x())[0].shape)
    got = run(jit(lambda x: fn(x)[0]), _x(True), cotangent=cotangent)
    want = run(lambda x: fn(x)[0], _x(True), cotangent=cotangent)
    torch.testing.assert_close(got, want)


def test_a_returned_tuple_carries_the_gradient_and_its_indices_need_none():
    x = _x(True)
    out = jit(lambda x: {"a": x.max(-1), "b": [x.topk(2), None, "text"]})(x)
    assert type(out["a"]) is torch.return_types.max
    assert type(out["b"][0]) is torch.return_types.topk
    assert out["b"][1:] == [None, "text"]
    assert out["a"].values.requires_grad
    assert not out["a"].indices.requires_grad
    (out["a"].values.sum() + out["b"][0].values.sum()).backward()
    want = _x(True)
    (want.max(-1).values.sum() + want.topk(2).values.sum()).backward()
    torch.testing.assert_close(x.grad, want.grad)


def test_the_trace_prints_a_program():
    jitted = jit(lambda x: (x.max(-1), x))
    jitted(_x())
    assert "torch.return_types.max((t" in str(thunder.compile_stats(jitted).last_epilogue_traces[-1])


def test_through_a_checkpoint():
    fn = lambda x: checkpoint(lambda x: (x * 2).max(-1), x, use_reentrant=False)  # noqa: E731
    out = jit(fn)(_x(True))
    assert type(out) is torch.return_types.max
    torch.testing.assert_close(out.values, fn(_x()).values)


class Largest(torch.nn.Module):
    def forward(self, x):
        return (x * 1).max(-1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copied_module_returns_it(copied):
    jitted = jit(Largest())
    jitted(_x())
    assert type(copied(jitted)(_x())) is torch.return_types.max


def test_thunderfx():
    from thunder.dynamo import thunderfx

    torch._dynamo.reset()
    f = thunderfx(lambda x: (x.max(-1), torch.softmax(x - x.max(-1, keepdim=True).values, -1)), executors=EXECUTORS)
    out, soft = f(_x(True))
    torch.testing.assert_close(out.values, _x().max(-1).values)
    torch.testing.assert_close(soft, torch.softmax(_x(), -1))


@pytest.mark.parametrize("executors", [EXECUTORS, EXECUTORS[:1], EXECUTORS[1:]], ids=["both", "aclnn", "triton"])
def test_the_stable_softmax_as_people_write_it_trains(executors):
    def f(x):
        return torch.softmax(x - x.max(-1, keepdim=True).values, -1)

    x = torch.randn(4, 8, requires_grad=True)
    cotangent = torch.rand(4, 8)
    torch.testing.assert_close(run(jit(f, executors=executors), x, cotangent=cotangent), run(f, x, cotangent=cotangent))


def test_a_tensor_stays_a_tensor():
    assert isinstance(jit(lambda x: x.max())(_x()), torch.Tensor)
    assert isinstance(jit(lambda x: torch.max(x, x * 2))(_x()), torch.Tensor)
    assert isinstance(jit(lambda x: x.median())(_x()), torch.Tensor)


def test_every_named_tuple_of_torch_that_thunder_traces_is_covered():
    covered = {cls.__name__.rpartition(".")[2] for cls, _, _ in results.named()}
    assert covered >= {"max", "min", "topk", "sort", "median", "mode", "kthvalue", "cummax", "cummin", "linalg_svd"}


def test_the_mends_name_the_version(monkeypatch):
    assert results.RESULTS.needed()
    assert results.PRINTING.needed()
    monkeypatch.setattr(mend, "LAST_TRIED", "0.0.1")
    assert not results.RESULTS.needed()
    assert not results.PRINTING.needed()
