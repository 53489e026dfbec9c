"""explain(): rows, reasons and rewrites of the last call, as text, data, JSON and HTML."""

import json

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.dynamo import thunderfx
from thunder.executors import torchex
from traces import EXECUTORS, jit

import thunder_npu


def fn(x, y, z):
    narrow = torch.softmax(x, -1)
    wide = F.log_softmax(y, -1).sum() + torch.softmax(y, -1).sum()
    return torch.cat((narrow, narrow), -1).sum() + wide + torch.cat((x, z), 0).sum()


@pytest.fixture
def explained():
    x, y, z = torch.randn(2, 8, requires_grad=True), torch.randn(2, 999, requires_grad=True), torch.randn(3, 8)
    jitted = jit(fn)
    jitted(x, y, z).backward()
    return thunder_npu.explain(jitted)


def test_rows(explained):
    found = {(r["trace"], r["symbol"].split(": ")[-1]): r for r in explained.rows}  # less the fused region's name
    expected = {
        ("forward", "triton_ascend_softmax"): ("softmax", 8, "width 8"),
        ("forward", "aclnn_softmax"): ("softmax", 999, "width 999 > softmax_aclnn_max_fuse_numel=256"),
        ("forward", "aclnn_log_softmax"): ("log_softmax", 999, "log_softmax_aclnn_fallback=True"),
        ("backward", "triton_ascend_softmax_backward"): ("softmax_backward", 8, "width 8"),
        ("backward", "aclnn_softmax_backward"): ("softmax_backward", 999, "width 999"),
        ("backward", "aclnn_log_softmax_backward"): ("log_softmax_backward", 999, "log_softmax"),
    }
    for key, (op, width, reason) in expected.items():
        row = found[key]
        assert (row["op"], row["width"], row["path"]) == (op, width, "reference")
        assert reason in row["reason"]
        assert row["executor"] == ("aclnn" if "aclnn" in key[1] else "triton_ascend")
        assert row["shape"][-1] == width
    cats = [r for r in explained.rows if r["op"] == "cat"]
    assert [(r["executor"], r["path"], r["shape"]) for r in cats] == [("torch", "cpu", (2, 8))]


def test_rewrites(explained):
    (done,) = [r for r in explained.rewrites if r["done"]]
    assert done["transform"] == "RepeatCat"
    assert "2 times one tensor" in done["reason"]


def test_regions():
    scores, mask = torch.randn(2, 3, 8, 8, requires_grad=True), torch.zeros(2, 1, 1, 8)
    jitted = jit(lambda s, m: torch.softmax(s * 0.125 + m, -1))
    jitted(scores, mask).sum().backward()
    report = thunder_npu.explain(jitted)
    forward, backward = report.regions
    assert (forward["name"], forward["rows"], forward["width"]) == ("TritonAscend0", 48, 8)
    assert forward["bytes_read"] + forward["bytes_written"] < forward["bytes_unfused"]
    assert "tl.store" in forward["source"]
    assert "tl.load" in backward["source"]
    assert "TritonAscend0" in str(report)
    assert len(json.loads(report.to_json())["regions"]) == 2


def test_text_json_html(explained):
    text = str(explained)
    for word in ("triton_ascend_softmax", "aclnn_log_softmax_backward", "RepeatCat", "width 999 >", "reference"):
        assert word in text
    data = json.loads(explained.to_json())
    assert len(data["rows"]) == len(explained.rows)
    assert data["rewrites"][0]["transform"] == "RepeatCat"
    html = explained.to_html()
    assert html.startswith("<!DOCTYPE html>")
    assert "aclnn_log_softmax" in html


def test_what_nobody_claims_says_why():
    x = torch.randn(2, 8, dtype=torch.float32)
    jitted = jit(lambda x: torch._safe_softmax(x, -1), executors=EXECUTORS[:1], safe_softmax_aclnn_fallback=False)
    jitted(x)
    (row,) = thunder_npu.explain(jitted).rows
    assert (row["symbol"], row["executor"], row["path"]) == ("_safe_softmax", "torch", "cpu")
    assert row["reason"] == "aclnn: safe_softmax_aclnn_fallback=False leaves _safe_softmax to ATen"


def test_the_report_reads_a_trace_once(monkeypatch):
    """Its cost grows with the trace: one graph a trace, and of every symbol one reading, however many regions."""
    from thunder_npu.executors import fusion, graph

    def chain(x):
        for _ in range(6):
            x = torch.matmul(torch.softmax(x * 0.5, -1), x)
        return x

    jitted = jit(chain)
    jitted(torch.randn(8, 8, requires_grad=True)).sum().backward()
    graphs, readings = [], []
    monkeypatch.setattr(fusion, "Graph", lambda *a: graphs.append(a) or graph.Graph(*a))
    original = graph.Graph._read
    monkeypatch.setattr(graph.Graph, "_read", lambda self, i: readings.append((id(self), i)) or original(self, i))
    regions = thunder_npu.explain(jitted).regions
    assert len(regions) == 12
    assert len(graphs) == 2
    assert len(readings) == len(set(readings))
    forward = [r for r in regions if "softmax_backward" not in " ".join(r["symbols"])]
    assert all(r["ends"] == ("matmul is not an operation on rows",) for r in forward)


@pytest.mark.parametrize(
    ("options", "cat", "softmax"),
    [
        ({}, "left, some operands repeat", "rows of any width"),
        ({"repeat_cat": False}, "left, the option repeat_cat is off", "rows of any width"),
        ({"executors": None}, "no RepeatCat has looked at it", "neither aclnn nor triton_ascend is in the list"),
        ({"executors": [torchex.ex, *EXECUTORS]}, "left, some operands repeat", "taken before triton_ascend was asked"),
    ],
)
def test_the_reason_is_about_who_took_it(options, cat, softmax):
    jitted = jit(lambda x: (torch.cat((x, x, x.exp())), torch.cat((x, x.exp())), torch.softmax(x, -1)), **options)
    jitted(torch.randn(2, 8))
    reasons = [r["reason"] for r in thunder_npu.explain(jitted).rows]
    wanted = (cat, "different tensors", softmax)
    assert all(reason.startswith(want) for reason, want in zip(reasons, wanted, strict=True)), reasons


def test_a_cache_hit_explains_the_entry_that_ran():
    jitted = jit(lambda x: torch.softmax(x, -1))
    x, y = torch.randn(2, 8, requires_grad=True), torch.randn(2, 999, requires_grad=True)
    for t, name in ((x, "triton_ascend"), (y, "aclnn"), (x, "triton_ascend")):
        jitted(t)
        symbols = [r["symbol"] for r in thunder_npu.explain(jitted).rows]
        assert symbols == [f"{name}_softmax", f"{name}_softmax_backward"]


def test_attention():
    q = torch.randn(1, 2, 4, 8)
    jitted = jit(lambda q: F.scaled_dot_product_attention(q, q, q))
    jitted(q)
    assert [r["op"] for r in thunder_npu.explain(jitted).rows] == ["attention"]


def test_symbolic_widths():
    jitted = jit(lambda x: torch.softmax(x, -1), cache="symbolic values")
    jitted(torch.randn(2, 999))
    (row,) = thunder_npu.explain(jitted).rows
    assert row["width"] is None
    assert row["executor"] == "aclnn"
    assert row["reason"].startswith("width 999 of the traced call (symbolic) > softmax_aclnn_max_fuse_numel=256")
    assert row["reason"].endswith("a call on the other side is traced anew")
    assert row["shape"] == ("i0", "i1")
    jitted = jit(lambda x: torch.softmax(torch.cat((x, x + 1.0), -1), -1), cache="symbolic values")
    jitted(torch.randn(2, 999))
    (row,) = [r for r in thunder_npu.explain(jitted).rows if r["op"] == "softmax"]
    assert "width 1998 of the traced call (symbolic)" in row["reason"]
    assert "traced anew" not in row["reason"]


def test_text_is_no_markup():
    jitted = jit(lambda x: torch.cat((x, x)), cache="symbolic values")
    jitted(torch.randn(2, 3))
    assert "f32[i0, i1]" in str(thunder_npu.explain(jitted))


def test_thunderfx_and_compile():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1)

    x = torch.randn(2, 999)
    compiled = thunderfx(Model(), executors=list(EXECUTORS))
    compiled(x)
    assert [r["symbol"] for r in thunder_npu.explain(compiled).rows] == ["aclnn_softmax"]
    compiled = thunder.compile(Model(), plugins=thunder_npu.NPU())
    compiled(x)
    assert [r["symbol"] for r in thunder_npu.explain(compiled).rows] == ["aclnn_softmax"]


def test_what_is_not_compiled_or_not_called_is_a_type_error():
    for thing in (len, jit(fn), thunderfx(fn, executors=list(EXECUTORS))):
        with pytest.raises(TypeError):
            thunder_npu.explain(thing)
