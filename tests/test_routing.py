"""Routing: the decision table, as a function and as what traces show."""

import dataclasses

import pytest
import thunder
import torch
import torch.nn.functional as F
from traces import assert_same, backward_symbols, forward_symbols, jit, run

import thunder_npu
from thunder_npu import routing
from thunder_npu.kernels import Target, codegen
from thunder_npu.kernels.region import COLUMN, Node, Region, Tensor

DEFAULTS = routing.Options(256, True, True)


def softmax(**changes):
    base = routing.Softmax("softmax", 2, 64, False, torch.float32, torch.float32, "npu")
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "options", "taken"),
    [
        ({"width": 256}, DEFAULTS, False),
        ({"width": 257}, DEFAULTS, True),
        ({"width": 257, "op": "safe_softmax"}, DEFAULTS, True),
        ({"width": None}, DEFAULTS, False),
        ({"width": 10**6}, dataclasses.replace(DEFAULTS, softmax_aclnn_max_fuse_numel=0), False),
        ({"width": 1, "op": "log_softmax"}, DEFAULTS, True),
        ({"width": None, "op": "log_softmax"}, DEFAULTS, True),
        ({"width": 1, "op": "log_softmax"}, dataclasses.replace(DEFAULTS, log_softmax_aclnn_fallback=False), False),
        ({"width": 999, "op": "log_softmax"}, dataclasses.replace(DEFAULTS, log_softmax_aclnn_fallback=False), True),
        ({"width": 999, "op": "safe_softmax"}, dataclasses.replace(DEFAULTS, safe_softmax_aclnn_fallback=False), False),
        ({"width": 999, "dtype": torch.float64, "result_dtype": torch.float64}, DEFAULTS, False),
        ({"width": 999, "dtype": torch.float64, "result_dtype": torch.float64, "device": "cpu"}, DEFAULTS, True),
        ({"width": 999, "dtype": torch.int64, "result_dtype": torch.float32}, DEFAULTS, True),
        ({"width": 999, "dtype": torch.int64, "result_dtype": torch.int64}, DEFAULTS, False),
        ({"width": 999, "rank": 8}, DEFAULTS, True),
        ({"width": 999, "rank": 9}, DEFAULTS, False),
        ({"width": 999, "empty": True}, DEFAULTS, False),
        ({"width": 999, "device": "cuda"}, DEFAULTS, False),
        ({"width": 999, "device": "meta"}, DEFAULTS, False),
    ],
)
def test_what_aclnn_takes(changes, options, taken):
    answer = routing.claim("aclnn", softmax(**changes), options)
    assert answer.taken is taken
    assert answer.reason


@pytest.mark.parametrize("device", ["cpu", "npu", "cuda", "meta", "xpu"])
@pytest.mark.parametrize("op", routing.OPS)
def test_a_refused_softmax_has_both_reasons(device, op):
    complex_one = softmax(op=op, device=device, dtype=torch.complex64, result_dtype=torch.complex64)
    answer = routing.route(complex_one, DEFAULTS)
    assert answer.executor is None
    assert "aclnn: " in answer.reason
    assert "triton_ascend: " in answer.reason


def test_the_order_of_the_list_decides():
    wide = softmax(width=999, device="cpu")
    assert routing.route(wide, DEFAULTS, ("aclnn", "triton_ascend")).executor == "aclnn"
    assert routing.route(wide, DEFAULTS, ("triton_ascend", "aclnn")).executor == "triton_ascend"
    with pytest.raises(KeyError):
        routing.claim("nvfuser", wide, DEFAULTS)


def test_a_row_that_no_tile_holds_is_left_to_a_fuser_behind(monkeypatch):
    """On a GPU: alone it would only keep the other fusion executor from its neighbours."""
    monkeypatch.setattr(routing, "missing_triton", lambda device: None)
    wide = softmax(width=routing.CUDA_FUSED_WIDTH + 1, device="cuda", executors=(*routing.OURS, "torchcompile"))
    assert not routing.claim("triton_ascend", wide, DEFAULTS).taken
    assert "torchcompile" in routing.claim("triton_ascend", wide, DEFAULTS).reason
    for changes in (
        {"width": routing.CUDA_FUSED_WIDTH},
        {"width": None},
        {"device": "npu"},
        {"device": "cpu"},
        {"executors": routing.OURS},
        {"op": "safe_softmax"},
    ):
        assert routing.claim("triton_ascend", dataclasses.replace(wide, **changes), DEFAULTS).taken, changes


@pytest.mark.parametrize(
    ("executors", "fuser"),
    [
        (["aclnn", "triton_ascend", "torchcompile", "torch"], "torchcompile"),
        (["torchcompile", "triton_ascend", "torch"], None),
        (["triton_ascend", "nvfuser", "torch", "python"], None),
        (["torchcompile"], None),
        ([], None),
    ],
)
def test_which_executor_fuses_behind_ours(executors, fuser):
    assert routing.fuser_behind(executors) == fuser


def test_the_widest_row_of_a_region_on_a_gpu():
    target = Target("cuda", "H200", 132)
    for width, fits in ((routing.CUDA_FUSED_WIDTH, True), (routing.CUDA_FUSED_WIDTH + 1, False)):
        tensor = Tensor((4, width), torch.bfloat16, ((1, 4), COLUMN))
        nodes = (Node("input", (), torch.bfloat16, 0), Node("softmax", (0,), torch.bfloat16))
        region = Region(4, width, nodes, (tensor,), ((1, tensor),))
        assert (codegen.unfit(region, target) is None) is fits


WIDTHS = (1, 255, 256, 257, 50257)


@pytest.mark.parametrize("bound", [None, 0, 4096])
@pytest.mark.parametrize("width", WIDTHS)
def test_width_routes_forward_and_backward(width, bound):
    options = {} if bound is None else {"softmax_aclnn_max_fuse_numel": bound}
    limit = 256 if bound is None else bound
    name = "aclnn" if limit and width > limit else "triton_ascend"

    def fn(x):
        return torch.softmax(x, -1)

    x, cotangent = torch.randn(4, width, requires_grad=True), torch.randn(4, width)
    jitted = jit(fn, **options)
    assert_same(run(jitted, x, cotangent=cotangent), run(fn, x, cotangent=cotangent))
    assert [s for s in forward_symbols(jitted) if "softmax" in s] == [f"{name}_softmax"]
    assert [s for s in backward_symbols(jitted) if "softmax" in s] == [f"{name}_softmax_backward"]
    assert not {"exp", "amax", "sum", "mul", "sub"} & {*forward_symbols(jitted), *backward_symbols(jitted)}


@pytest.mark.parametrize(
    ("options", "width", "name"),
    [({}, 1, "aclnn"), ({}, 50257, "aclnn"), ({"softmax_aclnn_max_fuse_numel": 0}, 50257, "aclnn"),
     ({"log_softmax_aclnn_fallback": False}, 256, "triton_ascend"),
     ({"log_softmax_aclnn_fallback": False}, 257, "aclnn"),
     ({"log_softmax_aclnn_fallback": False, "softmax_aclnn_max_fuse_numel": 0}, 257, "triton_ascend")],
)  # fmt: skip
def test_log_softmax(options, width, name):
    def fn(x):
        return torch.log_softmax(x, -1)

    x = torch.randn(3, width, requires_grad=True)
    jitted = jit(fn, **options)
    assert_same(run(jitted, x), run(fn, x))
    assert [s for s in forward_symbols(jitted) if "softmax" in s] == [f"{name}_log_softmax"]
    assert [s for s in backward_symbols(jitted) if "softmax" in s] == [f"{name}_log_softmax_backward"]


SYMBOLIC = {
    "last axis": lambda x: torch.softmax(x, -1),
    "first axis": lambda x: torch.softmax(x.t(), 0),
    "scores": lambda x: torch.softmax(x.t() @ x, -1),
    "safe_softmax": lambda x: torch._safe_softmax(x, -1),
    "module": torch.nn.Softmax(-1),
    "twice": lambda x: torch.softmax(torch.softmax(x, -1) * 2.0, -1),
}


def route_of(jitted):
    """ "aclnn" or "triton_ascend": who runs every softmax of the last call."""
    (route,) = {s.partition("_softmax")[0].removesuffix("_safe") for s in forward_symbols(jitted) if "softmax" in s}
    return route


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_a_symbolic_width_keeps_to_its_side_of_the_bound(name, requires_grad):
    """One trace for each side; what a call of the first width decides holds on that side alone."""
    jitted = jit(SYMBOLIC[name], cache="symbolic values")
    for width, misses in ((7, 1), (256, 1), (257, 2), (300, 2), (9, 2), (999, 2)):
        x = torch.randn(2, width, requires_grad=requires_grad)
        assert_same(run(jitted, x), run(SYMBOLIC[name], x), rtol=1e-5, atol=1e-6)
        assert route_of(jitted) == ("aclnn" if width > 256 else "triton_ascend"), width
        assert thunder.cache_misses(jitted) == misses, width


def test_a_symbolic_axis_is_one_axis_for_each_trace():
    jitted = jit(lambda x, dim: torch.softmax(x, dim), cache="symbolic values")
    for dim, misses in ((0, 1), (1, 2), (0, 2), (-1, 3)):
        x = torch.randn(300, 5)
        assert_same(jitted(x, dim), torch.softmax(x, dim))
        assert route_of(jitted) == ("aclnn" if dim == 0 else "triton_ascend")
        assert thunder.cache_misses(jitted) == misses


def test_attention_of_symbolic_length_in_training():
    def fn(x):
        return F.scaled_dot_product_attention(x, x, x)

    jitted = jit(fn, cache="symbolic values")
    for length, misses in ((5, 1), (300, 2), (256, 2), (257, 2)):
        x = torch.randn(1, length, 4, requires_grad=True)
        assert_same(run(jitted, x), run(fn, x), rtol=1e-4, atol=1e-5)
        assert route_of(jitted) == ("aclnn" if length > 256 else "triton_ascend")
        assert thunder.cache_misses(jitted) == misses


@pytest.mark.parametrize(
    ("fn", "options", "route"),
    [
        (lambda x: torch.softmax(x, -1), {"softmax_aclnn_max_fuse_numel": 0}, "triton_ascend"),
        (lambda x: torch.softmax(x, -1), {"executors": [thunder_npu.aclnn_ex]}, "aclnn"),
        (lambda x: torch.softmax(x, -1), {"executors": [thunder_npu.triton_ascend_ex]}, "triton_ascend"),
        (lambda x: torch.log_softmax(x, -1), {}, "aclnn_log"),
        (lambda x: torch.softmax(torch.cat((x, x + 1.0), -1), -1), {}, "triton_ascend"),  # no prologue knows the sum
    ],
)
def test_no_width_is_checked_that_would_not_change_the_route(fn, options, route):
    jitted = jit(fn, cache="symbolic values", **options)
    for width in (8, 999):
        x = torch.randn(2, width)
        assert_same(jitted(x), fn(x))
        assert route_of(jitted) == route
    assert thunder.cache_misses(jitted) == 1


def test_the_side_of_a_width():
    wide = softmax(width=999, device="cpu", symbolic=True)
    assert routing.side(wide, DEFAULTS) == [(">", 256)]
    assert routing.side(dataclasses.replace(wide, width=256), DEFAULTS) == [("<=", 256)]
    assert routing.side(dataclasses.replace(wide, width=None), DEFAULTS) == []
    assert routing.side(wide, DEFAULTS, ("triton_ascend", "aclnn")) == []
    assert routing.side(dataclasses.replace(wide, op="log_softmax"), DEFAULTS) == []


def test_each_signature_is_routed_anew():
    jitted = jit(lambda x: torch.softmax(x, -1))
    for width, name in ((8, "triton_ascend"), (9000, "aclnn"), (8, "triton_ascend"), (9000, "aclnn")):
        x = torch.randn(2, width)
        assert_same(jitted(x), torch.softmax(x, -1))
        assert f"{name}_softmax" in forward_symbols(jitted)


@pytest.mark.parametrize("op", routing.OPS)
@pytest.mark.parametrize("width", [1, 256, None])
def test_aclnn_leaves_a_narrow_row_only_to_a_triton_executor_that_takes_it(op, width, monkeypatch):
    options = dataclasses.replace(DEFAULTS, log_softmax_aclnn_fallback=False)
    narrow = softmax(op=op, width=width)
    monkeypatch.setattr(routing, "missing_triton", lambda device: None)
    assert not routing.claim("aclnn", narrow, options).taken
    alone = routing.claim("aclnn", dataclasses.replace(narrow, executors=("aclnn", "torch")), options)
    assert alone.taken
    assert "triton_ascend is not in the list" in alone.reason
    beside = dataclasses.replace(narrow, executors=("aclnn", "torchcompile"))
    assert routing.claim("aclnn", beside, options).taken is (op == "safe_softmax")
    monkeypatch.setattr(routing, "missing_triton", lambda device: "the package triton-ascend is not installed")
    for executors in (routing.OURS, (*routing.OURS, "torchcompile")):
        answer = routing.claim("aclnn", dataclasses.replace(narrow, executors=executors), options)
        assert answer.taken
        assert "not installed" in answer.reason


@pytest.mark.parametrize(
    "fn", [lambda x: torch.softmax(x, -1), lambda x: torch._safe_softmax(x, -1), lambda x: torch.log_softmax(x, -1)]
)
@pytest.mark.parametrize("options", [{}, {"softmax_aclnn_max_fuse_numel": 0, "log_softmax_aclnn_fallback": False}])
def test_aclnn_alone_runs_narrow_rows_and_their_backward(fn, options):
    x = torch.randn(4, 16, requires_grad=True)
    jitted = jit(fn, executors=[thunder_npu.aclnn_ex], **options)
    assert_same(run(jitted, x), run(fn, x))
    (forward,) = [s for s in forward_symbols(jitted) if "softmax" in s]
    assert forward.startswith("aclnn_")
    assert [s for s in backward_symbols(jitted) if "softmax" in s] == [f"{forward}_backward"]
