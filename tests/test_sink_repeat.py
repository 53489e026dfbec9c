"""SinkRepeat: rotary embeddings computed on half the width; what it leaves alone."""

from __future__ import annotations

import sys

import pytest
import thunder
import torch

if "npu" not in vars(torch):
    sys.modules.setdefault("torch_npu", None)  # transformers would import it, and it cannot load without CANN

from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral

from thunder_npu.transforms.repeat_cat import RepeatCat
from thunder_npu.transforms.sink_repeat import SinkRepeat, elements_written

MODULES = {"llama": modeling_llama, "mistral": modeling_mistral, "gpt_neox": modeling_gpt_neox}
BEFORE, AFTER = [RepeatCat()], [RepeatCat(), SinkRepeat()]


def jit(function, transforms):
    return thunder.jit(function, executors=[], transforms=transforms)


def names(jitted) -> list[str]:
    return [b.sym.name for b in thunder.last_traces(jitted)[-1].bound_symbols]


def work(jitted) -> tuple[int, int]:
    """Elements written, forward and backward."""
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    return elements_written(forward), elements_written(backward)


@pytest.mark.parametrize("model", MODULES)
def test_rotary_embeddings_shrink_forward_and_backward(model):
    def rotary(q, k, positions, inverse):
        freqs = (inverse[None, :, None] @ positions[:, None, :]).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = (emb.cos() * 0.5).to(q.dtype), (emb.sin() * 0.5).to(q.dtype)
        return MODULES[model].apply_rotary_pos_emb(q, k, cos, sin)

    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 10, 16, requires_grad=True), torch.randn(2, 2, 10, 16, requires_grad=True)
    positions, inverse = torch.arange(10.0)[None], torch.rand(8, requires_grad=True)
    results, done, cats = [], [], []
    for transforms in ([], BEFORE, AFTER):
        jitted = jit(rotary, transforms)
        outputs = jitted(q, k, positions, inverse)
        results.append((outputs, torch.autograd.grad([o.sum() for o in outputs], (q, k, inverse))))
        done.append(work(jitted))
        cats.append(names(jitted).count("cat"))
    for earlier in done[:2]:
        assert done[2][0] < earlier[0], "forward"
        assert done[2][1] < earlier[1], "backward"
    assert cats[2] == cats[0] - 1, "what is left is rotate_half's, of unlike tensors"
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[2][0], strict=True))
    (dq, dk, dinverse), (dq2, dk2, dinverse2) = results[0][1], results[2][1]
    assert torch.equal(dq, dq2)
    assert torch.equal(dk, dk2)
    torch.testing.assert_close(dinverse, dinverse2)  # the same terms, summed in another order
    # No tensor of the full width is made of the frequencies.
    trace = thunder.last_traces(jitted)[-1]
    assert all(b.output.shape[-1] == 8 for b in trace.bound_symbols if b.sym.name in ("cos", "sin"))


def test_a_repeat_that_is_returned_is_written_out_once_at_the_end():
    def function(x):
        y = torch.cat((x, x), -1)
        return torch.exp(torch.sin(y * 2.0) + 1.0)

    x = torch.randn(3, 4)
    jitted = jit(function, AFTER)
    assert torch.equal(jitted(x), function(x))
    trace = thunder.last_traces(jitted)[-1]
    assert all(b.output.shape == (3, 4) for b in trace.bound_symbols if b.sym.name in ("mul", "sin", "add", "exp"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat((x, x), -1) @ torch.ones(8, 2),
        lambda x: torch.cat((x, -x), -1) * 2.0,
        lambda x: torch.cat((x, x), -1).sum(-1),
    ],
    ids=["matmul", "unlike", "reduction"],
)
def test_without_gain_the_trace_is_left_alone(function):
    x = torch.randn(3, 4)
    before, after = jit(function, BEFORE), jit(function, AFTER)
    assert torch.equal(after(x), before(x))
    assert names(after) == names(before)


def test_an_update_in_place_is_not_passed():
    def function(x):
        y = torch.cat((x, x), -1)
        x.add_(1.0)
        return torch.exp(torch.sin(y * 2.0) + 1.0)

    x = torch.randn(3, 4)
    want = function(x.clone())
    assert torch.equal(jit(function, AFTER)(x), want)


def test_applied_twice_it_changes_nothing_more():
    def function(x, q):
        y = torch.cat((x, x), -1)
        return q * (torch.cos(y) * 2.0)

    x, q = torch.randn(3, 4), torch.randn(5, 3, 8)
    once, twice = jit(function, AFTER), jit(function, [*AFTER, SinkRepeat()])
    assert torch.equal(once(x, q), twice(x, q))
    assert names(once) == names(twice)
