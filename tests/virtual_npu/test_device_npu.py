"""The "npu" device type of Thunder on npu tensors: what Thunder traces is what torch_npu does.

The tests of several devices need `python -m thunder_npu.virtual_npu --devices 2`.
"""

from __future__ import annotations

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import devices
from torch.utils._pytree import tree_leaves

import thunder_npu

EXECUTORS = (thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex)
several_devices = pytest.mark.skipif(torch.npu.device_count() < 2, reason="needs two devices")


def jit(f):
    return thunder.jit(f, executors=EXECUTORS)


def same(got, want):
    """Equal values, shapes, dtypes, devices and requires_grad, of tensors and tuples of them."""
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    for a, b in zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]:
        assert (a.device, a.requires_grad) == (b.device, b.requires_grad)


def gradients(f, *args):
    """f's outputs, and the gradients of their sum, on fresh leaves."""
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    out = f(*leaves)
    sum(o.float().sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
    return out, [a.grad for a in leaves if a.requires_grad]


def test_traces_and_results_are_on_the_device():
    jitted = jit(lambda a: torch.softmax(a, -1))
    x = torch.randn(4, 512, device="npu")
    assert jitted(x).device == x.device == torch.device("npu", 0)
    assert 'a: "npu:0 f32[4, 512]"' in str(thunder.last_traces(jitted)[-1])
    assert "check_tensor_metadata(a, (4, 512), 'npu:0', torch.float32, False)" in str(
        thunder.last_prologue_traces(jitted)[-1]
    )


def test_prologue_tells_devices_apart():
    jitted = jit(lambda a: a * 2.0)
    for x in (torch.ones(3, device="npu"), torch.ones(3), torch.ones(3, device="npu")):
        same(jitted(x), x * 2.0)
    assert thunder.cache_misses(jitted) == 2
    assert thunder.cache_hits(jitted) == 1


FACTORIES = {
    "zeros": lambda: torch.zeros(2, 3, device="npu"),
    "ones": lambda: torch.ones(2, 3, device="npu:0", dtype=torch.float16),
    "full": lambda: torch.full((2, 3), 1.5, device=torch.device("npu")),
    "arange": lambda: torch.arange(5, device="npu") * 2,
    "tensor": lambda: torch.tensor([1.0, 2.0], device="npu:0"),
    "zeros_like": lambda: torch.zeros_like(torch.ones(3), device="npu"),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    same(jit(FACTORIES[name])(), FACTORIES[name]())


@pytest.mark.parametrize("factory", [torch.rand, torch.randn, torch.empty])
def test_factories_without_a_given_value(factory):
    got = jit(lambda: factory(64, 3, device="npu", dtype=torch.float32))()
    assert (got.device, got.dtype, got.shape) == (torch.device("npu", 0), torch.float32, (64, 3))


def test_default_device():
    with torch.device("npu"):
        same(jit(lambda: torch.ones(3) + 1.0)(), torch.full((3,), 2.0))


MOVES = {
    "to npu": (lambda a: a.to("npu") * 2.0, "cpu"),
    "to npu, half": (lambda a: a.to("npu:0", torch.float16) * 2.0, "cpu"),
    "to a device": (lambda a: a.to(torch.device("npu")) + 1.0, "cpu"),
    "to another's": (lambda a, b: b.to(a) + a, "npu"),
    "to cpu": (lambda a: a.to("cpu") * 2.0, "npu"),
    "there and back": (lambda a: a.to("npu").exp().to("cpu") * 2.0, "cpu"),
    "Tensor.npu": (lambda a: a.npu() * 2.0, "cpu"),
    "Tensor.cpu": (lambda a: a.cpu() * 2.0, "npu"),
    "is_npu": (lambda a: a * 2.0 if a.is_npu else a * 3.0, "npu"),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_and_their_gradients(name):
    f, device = MOVES[name]
    x = torch.randn(4, 3).to(device).requires_grad_()
    args = (x, torch.randn(4, 3)) if f.__code__.co_argcount == 2 else (x,)
    (got, grads), (want, want_grads) = gradients(jit(f), *args), gradients(f, *args)
    same(got, want)
    same(grads[0], want_grads[0])


def test_available_devices():
    assert [d.device_str() for d in devices.available_devices()] == [
        "cpu",
        *(f"npu:{i}" for i in range(torch.npu.device_count())),
    ]


# ---------------------------------------------------------------- autocast


def layer(x, w, b, target):
    """Every kind of operator that autocast looks at: lower precision, float32, and neither."""
    h = F.linear(x, w, b)
    p = torch.softmax(h @ w, -1)
    return h, p, torch.log_softmax(h, -1), h + x, F.cross_entropy(h, target)


def inputs():
    torch.manual_seed(0)
    made = torch.randn(8, 16), torch.randn(16, 16), torch.randn(16)
    return *(t.npu().requires_grad_() for t in made), torch.randint(16, (8,)).npu()


def check_close(got, want, tolerance=2**-5):
    """Like eager: the same dtypes and devices, values within `tolerance` of the largest element."""
    for a, b in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_around_the_call(dtype):
    jitted = jit(layer)
    for _ in range(2):
        check_close(gradients(jitted, *inputs()), gradients(layer, *inputs()))
        with torch.autocast("npu", dtype=dtype):
            check_close(gradients(jitted, *inputs()), gradients(layer, *inputs()))
            assert torch.is_autocast_enabled("npu")
        assert not torch.is_autocast_enabled("npu")
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_in_the_function(dtype, enabled):
    def f(x, w, b, target):
        with torch.autocast("npu", dtype=dtype, enabled=enabled):
            low = layer(x, w, b, target)
            with torch.autocast("npu", enabled=False):
                off = layer(x, w, b, target)
        return *low, *off, x @ w

    check_close(gradients(jit(f), *inputs()), gradients(f, *inputs()))
    with torch.autocast("npu", dtype=dtype):
        check_close(gradients(jit(f), *inputs()), gradients(f, *inputs()))


SOFTMAXES = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of a dtype": lambda x: torch.softmax(x, -1, torch.float16),
    "log_softmax": lambda x: x.log_softmax(-1),
    "_safe_softmax": lambda x: torch._safe_softmax(input=x, dim=-1),
    "_safe_softmax of a dtype": lambda x: torch._safe_softmax(x, -1, torch.float16),
}


@pytest.mark.parametrize("op", SOFTMAXES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_autocast_of_every_softmax(op, dtype):
    x = torch.randn(4, 8, dtype=dtype).npu()
    with torch.autocast("npu", dtype=torch.bfloat16):
        check_close(jit(SOFTMAXES[op])(x), SOFTMAXES[op](x))


def test_autocast_of_another_device():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_close(jit(layer)(*inputs()), layer(*inputs()), tolerance=1e-6)
    x = torch.randn(4, 4)
    with torch.autocast("npu", dtype=torch.bfloat16):
        same(jit(torch.matmul)(x, x), x @ x)


# ---------------------------------------------------------------- several devices


@several_devices
def test_the_index_is_kept():
    f = jit(lambda a: torch.softmax(a, -1) + torch.ones_like(a))
    x = torch.randn(4, 512, device="npu:1", requires_grad=True)
    out, (grad,) = gradients(f, x)
    assert out.device == grad.device == torch.device("npu", 1)
    assert 'a: "npu:1 f32[4, 512]"' in str(thunder.last_traces(f)[-1])
    same(f(x.detach().to("npu:0")), f(x.detach()).to("npu:0"))


@several_devices
def test_a_bare_npu_is_the_current_device():
    f = jit(lambda a: a.to("npu") + torch.ones(3, device="npu"))
    try:
        for index in (0, 1, 0):
            torch.npu.set_device(index)
            assert f(torch.ones(3)).device == torch.device("npu", index)
    finally:
        torch.npu.set_device(0)


@several_devices
def test_two_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="Devices were expected to be the same"):
        jit(torch.add)(torch.ones(3, device="npu:0"), torch.ones(3, device="npu:1"))
