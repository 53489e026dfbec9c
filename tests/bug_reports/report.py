"""What the bug reports' cases share: placing inputs on the device under test, and comparing with CPU eager."""

import os

import torch
from torch.utils._pytree import tree_map

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
