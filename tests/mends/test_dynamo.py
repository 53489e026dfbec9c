"""thunderfx of masks made under vmap: what stands behind the vmap goes to Thunder, and eager's numbers come out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from thunder import common
from thunder.dynamo import thunderfx

import thunder_npu
from tests.traces import EXECUTORS
from thunder_npu.mends import dynamo


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()


def masked_attention(q, k, v):
    """A causal mask made as transformers 4.55 makes it, then attention and more."""
    rows, columns = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    visible = torch.vmap(torch.vmap(lambda i, j: j <= i, in_dims=(None, 0)), in_dims=(0, None))(rows, columns)
    return torch.softmax(F.scaled_dot_product_attention(q, k, v, attn_mask=visible) * 2.0, -1)


def test_what_stands_behind_a_vmap_goes_to_thunder():
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3)]
    compiled = thunderfx(masked_attention, executors=EXECUTORS)
    got = compiled(*inputs)
    want = masked_attention(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    cotangent = torch.randn_like(want)
    for g, w in zip(
        torch.autograd.grad(got, inputs, cotangent), torch.autograd.grad(want, inputs, cotangent), strict=True
    ):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    (graph,) = compiled._backend.subgraph_infos
    pieces = [name for name, _ in graph.split_graph_module.named_children()]
    assert [name.split("_")[0] for name in pieces] == ["thunder", "inductor", "thunder"]
    (note,) = thunder_npu.explain(compiled).notes
    assert note.startswith("graph 0: ")
    assert "operators of inductor_1 run by Inductor, since" in note
    assert "_vmap_increment_nesting" in note
    symbols = [row["symbol"].split(": ")[-1] for row in thunder_npu.explain(compiled).rows]
    assert sum("softmax" in symbol and "backward" not in symbol for symbol in symbols) >= 2


def test_nodes_under_vmap_are_those_between_its_ends():
    def f(x):
        return torch.vmap(torch.sin)(x) + torch.cos(x)

    graphs = []
    torch.compile(f, backend=lambda gm, _: graphs.append(gm) or gm.forward)(torch.randn(3))
    inside = {n.target.__name__ for n in dynamo._nodes_under_vmap(graphs[0])}
    assert {"sin", "_vmap_increment_nesting", "_vmap_decrement_nesting"} <= inside
    assert not {"cos", "add"} & inside


def test_the_executors_asked_are_those_of_the_call(monkeypatch):
    asked = []

    class Recorded(common.CompileData):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            asked.append([str(ex.name) for ex in self.executors_list])

    monkeypatch.setattr(common, "CompileData", Recorded)
    thunderfx(lambda x: torch.tanh(x), executors=["aclnn"])(torch.randn(3))
    assert [sorted(names) for names in asked] == [["aclnn", "python", "torch"]]
    assert common.CompileData is Recorded
    torch.compiler.reset()
    asked.clear()
    thunderfx(lambda x: torch.tanh(x))(torch.randn(3))
    assert len(asked) == 1
    assert "aclnn" not in asked[0]
