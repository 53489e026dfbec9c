"""Small inputs from public bug reports, with their right values: what Thunder does with a function."""

import torch
import torch.nn.functional as F
from report import DEV, INF, R, check, check_grad, cpu, grads, place, same, weights
from torch import nn


class MaskedScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        self.seen.add_(1.0)
        return torch.softmax(x * self.scale + self.mask, -1)


def test_module_and_method_forms(jit):
    """nn.Softmax passes an extra _stacklevel; there are also Softmax2d, the tensor method and torch.special.

    Source: Lightning-AI/lightning-thunder issue 258. Right: equal to eager.
    """
    x = R(2, 3, 4, 5)
    for mod in (nn.Softmax(1), nn.Softmax(dim=-1), nn.Softmax2d()):
        same(jit(mod)(x.to(DEV)), mod(x))
    check(
        jit,
        lambda a: (a.softmax(-1), a.log_softmax(1), torch.special.softmax(a, 0), F.softmax(a, dim=-1, dtype=None)),
        x,
    )


def test_one_function_many_signatures(jit):
    """Narrow then wide then narrow rows through one compiled function moves between the two executors; the
    second shape once came back NaN elsewhere.

    Source: Lightning-AI/lightning-thunder issues 1905, 1525; pytorch/pytorch issue 148545. Right: equal to
    eager on every call.
    """
    f = lambda a, d: torch.softmax(a * 0.5, d)
    jf = jit(f)
    for shp, d, dt, g in (
        ((4, 32), -1, torch.float32, False),
        ((4, 20000), -1, torch.float32, True),
        ((4, 32), 0, torch.float16, False),
        ((4, 32), -1, torch.float32, True),
        ((2, 4, 33), 1, torch.bfloat16, False),
        ((4, 32), -1, torch.float32, False),
    ):
        x = R(*shp, dtype=dt, grad=g)
        out = jf(*place((x, d), DEV))
        same(out, f(x, d))
        assert out.requires_grad == g and out.dtype == dt


def test_input_updated_in_place(jit):
    """Two in-place steps: the copy back to the input once took the value after the first step.

    Source: Lightning-AI/lightning-thunder issues 720, 652. Right: result and updated input equal to eager.
    """

    def fn(a):
        a.relu_()
        a.add_(1.0)
        return torch.softmax(a, -1)

    ref, x = R(3, 5), place((R(3, 5),), DEV)[0]
    want = fn(ref)
    same((jit(fn)(x), x), (want, ref))


def test_no_grad_regions(jit):
    """Under no_grad the result needs no grad; a no_grad region inside cuts only its own part.

    Source: Lightning-AI/lightning-thunder issues 315, 2398. Right: equal to eager, requires_grad as in eager.
    """

    def fn(x):
        with torch.no_grad():
            s = torch.softmax(x, -1)
        return x * 2 + s

    check_grad(jit, fn, R(2, 4, grad=True), want=[2 * weights(torch.zeros(2, 4))])
    f, (x,) = jit(lambda a: torch.softmax(a, -1)), place((R(2, 4, grad=True),), DEV)
    for ctx in (torch.no_grad, torch.inference_mode):
        with ctx():
            assert not f(x).requires_grad
    assert f(x).requires_grad


def test_module_state_changes_between_calls(jit):
    """A mask buffer and a scale parameter change between calls, in place; compiled code must not keep the old
    values. The forward also updates a buffer.

    Source: Lightning-AI/lightning-thunder issue 1950. Right: follows the module state.
    """
    m, ref, x = MaskedScale().to(DEV), MaskedScale(), R(2, 4)
    jm = jit(m)
    for i in range(3):
        same((jm(x.to(DEV)), m.seen), (ref(x), ref.seen))
        with torch.no_grad():
            for t in (m, ref):
                t.mask[i] = -INF
                t.scale.mul_(-2.0)


def test_retain_graph_twice(jit):
    """The saved list was emptied in the first backward; the second one failed.

    Source: Lightning-AI/lightning-thunder issue 2221. Right: twice the gradient.
    """
    fn = lambda a: torch.log_softmax(torch.cat((a, a), -1) * 0.5, -1)
    (x,) = place((R(2, 3, grad=True),), DEV)
    out = jit(fn)(x)
    out.backward(weights(out), retain_graph=True)
    once = cpu(x.grad).clone()
    out.backward(weights(out))
    _, (want,) = grads(fn, (R(2, 3, grad=True),))
    same((once, x.grad), (want, 2 * want))


def test_cross_entropy_ignore_index(jit):
    """The decomposition indexed with -100. Ignored rows give zero gradient, and -inf logits off the target stay
    finite.

    Source: Lightning-AI/lightning-thunder issue 1744, PR 2043. Right: equal to eager; NaN only if all targets
    are ignored.
    """
    x = R(4, 7)
    x[2, 3] = -INF
    t = torch.tensor([1, -100, 0, 6])
    check_grad(jit, lambda x, t: F.cross_entropy(x, t), x.requires_grad_(), t)
    check(
        jit,
        lambda x, t: F.cross_entropy(x, t, reduction="sum"),
        x.detach(),
        torch.full((4,), -100),
        want=torch.tensor(0.0),
    )


def test_two_softmaxes_in_one_trace(jit):
    """The same op on the same shape twice, once nested, and narrow beside wide: each has its own saved tensors
    and its own executor.

    Source: Lightning-AI/lightning-thunder issue 81. Right: equal to eager, gradients too.
    """

    def fn(a, b):
        p, q = torch.softmax(a, -1), torch.softmax(a * 2, -1)
        return p * q + torch.softmax(p, -1), torch.softmax(b, -1)

    check_grad(jit, fn, R(3, 16, grad=True), R(3, 9000, seed=1, grad=True))
