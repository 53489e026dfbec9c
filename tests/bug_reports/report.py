"""What the bug reports' cases share: placing inputs on the device under test, and comparing with CPU eager."""

import os

import torch
from torch.utils._pytree import tree_map

import thunder_npu

# The right values always come from CPU eager; the inputs of the compiled function lie here.
DEV = os.environ.get("THUNDER_NPU_TEST_DEVICE", "cpu")
INF, NAN = float("inf"), float("nan")
FMIN = torch.finfo(torch.float32).min


def place(args, device=None):
    """Fresh copies that keep strides, offsets and sharing between the arguments."""
    memo = {}

    def one(a):
        if not isinstance(a, torch.Tensor):
            return a
        st = a.untyped_storage()
        key = (st.data_ptr(), a.dtype) if st.nbytes() else id(a)
        if key not in memo:
            memo[key] = torch.empty(0, dtype=a.dtype).set_(st).clone().to(device or "cpu")
        t = (
            memo[key].as_strided(a.size(), a.stride(), a.storage_offset())
            if st.nbytes()
            else a.detach().clone().to(device or "cpu")
        )
        return t.requires_grad_(a.requires_grad)

    return tree_map(one, tuple(args))


def cpu(x):
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def same(got, want, exact=False, **tol):
    if exact:
        tol = dict(rtol=0, atol=0)
    torch.testing.assert_close(cpu(got), cpu(want), equal_nan=True, **tol)


def check(jit, fn, *args, want=None, exact=False, jfn=None, **tol):
    """fn compiled == fn in CPU eager (or == want). Returns the compiled result."""
    want = fn(*place(args)) if want is None else want
    got = (jfn or jit(fn))(*place(args, DEV))
    same(got, want, exact, **tol)
    return got


def weights(t):
    g = (torch.arange(t.numel(), dtype=torch.float32) % 7 - 2.5) / 4
    return g.reshape(t.shape).to(t.dtype).to(t.device)


def grads(fn, args, device=None, cot=weights):
    args = place(args, device)
    out = fn(*args)
    outs = [
        o
        for o in (out if isinstance(out, (tuple, list)) else (out,))
        if isinstance(o, torch.Tensor) and o.requires_grad
    ]
    torch.autograd.backward(outs, [cot(o) for o in outs])
    return cpu(out), [
        None if a.grad is None else cpu(a.grad) for a in args if isinstance(a, torch.Tensor) and a.requires_grad
    ]


def check_grad(jit, fn, *args, cot=weights, want=None, **tol):
    w_out, w_g = grads(fn, args, cot=cot)
    g_out, g_g = grads(jit(fn), args, DEV, cot=cot)
    same(g_out, w_out, **tol)
    same(g_g, w_g if want is None else want, **tol)


def R(*shape, dtype=torch.float32, scale=1.0, seed=0, grad=False):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g) * scale).to(dtype).requires_grad_(grad)


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Eager rounds after every operation and its gradients are sums of such results: of half types some ulps are lost.
TOLERANCE = {F32: dict(rtol=1e-4, atol=1e-5), BF16: dict(rtol=4e-2, atol=2e-2), F16: dict(rtol=5e-3, atol=2e-3)}


def check_dtypes(jit, fn, *args, dtypes=(F32, BF16), **tol):
    """Values and gradients are CPU eager's, for float arguments of each dtype. Returns the last jitted fn."""

    def to(a, dtype):
        if not isinstance(a, torch.Tensor) or not a.is_floating_point():
            return a
        return a.detach().to(dtype).requires_grad_(a.requires_grad)

    for dtype in dtypes:
        given = tuple(to(a, dtype) for a in args)
        jitted = jit(fn)
        for got, want in zip(grads(jitted, given, DEV), grads(fn, given), strict=True):
            same(got, want, **(tol or TOLERANCE[dtype]))
    return jitted


def softmaxes(jitted):
    """The symbols that run the softmaxes of the last forward, in a region or alone."""
    rows = [r for r in thunder_npu.explain(jitted).rows if r["trace"] == "forward" and "softmax" in r["op"]]
    return sorted(r["symbol"].split(": ")[-1] for r in rows)


def fused(jitted):
    """Names of all symbols inside of the regions."""
    return {name for region in thunder_npu.explain(jitted).regions for name in region["symbols"]}
