"""Regions never depend on each other in a circle, however softmaxes and their gradients feed each other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import thunder
import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import devices, dtypes, prims, transforms
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torch_ex

from thunder_npu import aclnn_ex, triton_ascend_ex
from thunder_npu.executors.fusion import find_regions, is_region
from thunder_npu.executors.graph import Graph

SIZE = 6


def square_of_attention(a: torch.Tensor) -> torch.Tensor:
    def attention(a: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(a[None], a[None], a[None])

    return (attention(a) * attention(a)).sum()


def crossed(a: torch.Tensor) -> torch.Tensor:
    """Two softmaxes, each scaled by what the other's product gives."""
    p, q = torch.softmax(a * 2.0, -1), torch.softmax(a + 1.0, -1)
    return (torch.softmax((p @ a) * q, -1) * torch.softmax((q @ a) * p, -1)).sum()


def random_program(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Softmaxes of a square matrix that read each other through products, sums and matrix products."""
    r = random.Random(seed)
    program: list[tuple[str, int, int]] = []
    kinds = ("softmax", "softmax", "log_softmax", "scale", "mul", "add", "matmul", "matmul")
    for i in range(r.randint(4, 8)):
        program.append((r.choice(kinds), *(max(0, i - r.randint(0, 4)) for _ in range(2))))

    def fn(a: torch.Tensor) -> torch.Tensor:
        values = [a]
        for kind, i, j in program:
            x, y = values[i], values[j]
            if kind in ("softmax", "log_softmax"):
                values.append(getattr(torch, kind)(x, -1))
            elif kind == "scale":
                values.append(x * 0.5)
            elif kind == "matmul":
                values.append(torch.matmul(x, y) * 0.25)
            else:
                values.append(getattr(torch, kind)(x, y))
        return (values[-1] * values[-2]).sum() + (values[-1] * values[len(values) // 2]).sum()

    return fn


def assert_in_order(trace: TraceCtx) -> None:
    """Whatever a symbol reads has been made before it."""
    made = {a.name for a in trace.args}
    for bsym in trace.bound_symbols:
        if bsym.sym.name != "python_return":
            assert {p.name for p in bsym.flat_proxy_args} <= made, bsym
        made |= {p.name for p in bsym.flat_proxy_outs}


@pytest.mark.parametrize("fn", [square_of_attention, crossed, *map(random_program, range(4))])
def test_the_gradient_of_softmaxes_that_feed_each_other(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Thunder's own grad keeps forward and backward in one trace, without a label of which is which."""
    torch.manual_seed(0)
    x = torch.randn(SIZE, SIZE)
    leaf = x.clone().requires_grad_()
    fn(leaf).backward()
    jitted = transforms.grad(thunder.jit(fn, executors=[triton_ascend_ex, aclnn_ex]))
    (got,) = jitted(x)
    torch.testing.assert_close(got, leaf.grad, rtol=1e-4, atol=1e-4)


def random_trace(seed: int) -> TraceCtx:
    """Softmaxes, gradients of softmaxes, and what joins and does not join a region, between random earlier values."""
    r = random.Random(seed)
    softmax = triton_ascend_ex.opmap["triton_ascend_softmax"]
    backward = triton_ascend_ex.opmap["triton_ascend_softmax_backward"]
    trace = TraceCtx(None)
    with tracectx(trace):
        inputs = [
            TensorProxy(shape=(SIZE, SIZE), device=devices.cpu, dtype=dtypes.float32, requires_grad=False)
            for _ in range(2)
        ]
        for p in inputs:
            prims.unpack_trivial(p, name=p.name)
        values: list[TensorProxy] = list(inputs)
        softmaxes: list[TensorProxy] = []
        for _ in range(r.randint(2, 4)):
            softmaxes.append(softmax(ltorch.matmul(*r.choices(values, k=2)), -1))
            values.append(softmaxes[-1])
        for _ in range(r.randint(6, 18)):
            x, y = r.choice(values), r.choice(values[-6:])
            kind = r.random()
            if kind < 0.35:
                values.append(backward(ltorch.matmul(x, y), r.choice(softmaxes), -1, torch.float32))
            elif kind < 0.45:
                softmaxes.append(softmax(ltorch.matmul(x, y), -1))
                values.append(softmaxes[-1])
            elif kind < 0.85:
                values.append(ltorch.mul(x, y))
            else:
                values.append(ltorch.add(x, ltorch.full((SIZE, SIZE), 0.5, device="cpu", dtype=torch.float32)))
        results = (values[-1], *r.sample(values[2:], 2))
        prims.python_return(results)
    trace.args, trace.kwargs = tuple(inputs), {}
    return trace


def test_random_traces_have_no_circle() -> None:
    regions = shared = 0
    for seed in range(200):
        trace = random_trace(seed)
        fused = transform_for_execution(trace, (triton_ascend_ex, torch_ex))
        assert_in_order(fused)
        found = [bsym for bsym in fused.bound_symbols if is_region(bsym)]
        regions += len(found)
        shared += any(sum("softmax" in b.sym.name for b in bsym.subsymbols) > 1 for bsym in found)
    assert regions > 200
    assert shared > 20


def test_a_path_through_another_region_leaves_and_comes_back() -> None:
    """s1 → a product → the gradient of s0, in one region with s0 → a product → the gradient of s1: one waits."""
    softmax = triton_ascend_ex.opmap["triton_ascend_softmax"]
    backward = triton_ascend_ex.opmap["triton_ascend_softmax_backward"]
    trace = TraceCtx(None)
    with tracectx(trace):
        a = TensorProxy(shape=(SIZE, SIZE), device=devices.cpu, dtype=dtypes.float32, requires_grad=False)
        prims.unpack_trivial(a, name=a.name)
        first = softmax(a, -1)
        second = softmax(ltorch.matmul(a, a), -1)
        of_second = backward(ltorch.matmul(first, a), second, -1, torch.float32)
        of_first = backward(ltorch.matmul(second, a), first, -1, torch.float32)
        prims.python_return((of_first, of_second))
    trace.args, trace.kwargs = (a,), {}
    graph = Graph(transform_for_execution(trace, (torch_ex,)), triton_ascend_ex)
    position = graph.maker
    s1, g1 = position[second.name], position[of_second.name]
    assert graph.is_convex({s1, g1})
    (region,) = find_regions(graph)
    assert region.members == {position[first.name], position[of_first.name]}
    assert not graph.is_convex({s1, g1})
    assert graph.is_convex({g1})
