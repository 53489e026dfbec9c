"""Small inputs from public bug reports, with their right values: routers, samplers and losses."""

import torch
import torch.nn.functional as F
from report import BF16, DEV, F32, INF, R, check, check_dtypes, cpu, same, softmaxes


def test_router_of_experts(jit):
    """A float32 softmax over 2 to 64 experts, its largest weights, divided by their sum or not, then cast.

    Source: sgl-project/sglang PR 35160; kyegomez/OpenMythos PR 41; vllm-project/vllm-omni PR 6777. Right: equal to
    eager, with a gradient through the chosen weights.
    """
    for experts, k in ((2, 1), (6, 2), (64, 6)):
        x, w = R(10, 12, grad=True), R(experts, 12, seed=1, grad=True)
        for renormalise in (False, True):

            def fn(x, w):
                p = F.softmax(F.linear(x, w), dim=1, dtype=F32)
                top, index = torch.topk(p, k, dim=-1)
                if renormalise:
                    top = top / torch.clamp(top.sum(-1, keepdim=True), min=1e-8)
                return top.to(x.dtype), index, p.mean(0)

            jitted = check_dtypes(jit, fn, x, w, dtypes=(F32,))
            assert softmaxes(jitted) == ["triton_ascend_softmax"]
            check(jit, fn, x.detach().to(BF16), w.detach().to(BF16), rtol=2e-2, atol=1e-2)


def test_straight_through_samples(jit):
    """One-hot in the forward, the gradient of the soft sample; the noise is an argument.

    Source: pytorch/pytorch issues 145470, 127749, 48574. Right: equal to eager.
    """

    def fn(x, noise):
        y = torch.softmax((x - noise.log()) / 0.5, -1)
        hard = torch.zeros_like(x).scatter(-1, y.max(-1, keepdim=True)[1], 1.0)
        return hard - y.detach() + y

    noise = torch.rand(6, 10, generator=torch.Generator().manual_seed(3)) * 3 + 1e-3
    check_dtypes(jit, fn, R(6, 10, grad=True), noise, dtypes=(F32,))


def test_focal_loss(jit):
    """(1 − p) ** gamma · log p with saturated logits, so at p = 0 and p = 1; channels in axis 1.

    Source: kornia/kornia issue 918, PRs 64, 65; gnn-tracking/gnn_tracking issue 138. Right: as eager, inf and NaN
    in the same places.
    """
    x = R(2, 5, 3, 4, grad=True)
    s = torch.tensor([[100.0, -100.0, 0.0], [0.0, 1.0, 200.0]], requires_grad=True)
    for gamma in (2.0, 0.5, 3):
        check_dtypes(jit, lambda a: (torch.pow(1.0 - torch.softmax(a, 1), gamma) * -torch.log_softmax(a, 1)).mean(), x)
        check_dtypes(
            jit,
            lambda a: torch.pow(1.0 - torch.softmax(a, -1), gamma) * torch.log(torch.softmax(a, -1) + 1e-8),
            s,
            dtypes=(F32,),
        )
        check_dtypes(jit, lambda a: (1 - torch.exp(torch.log_softmax(a, -1))) ** gamma, s, dtypes=(F32,))


def test_contrastive_losses(jit):
    """The diagonal excluded: a sum of exponentials by hand, a log_softmax with -inf, a cross entropy of similarities.

    Source: HobbitLong/SupContrast issue 104; emadeldeen24/TS-TCC issue 25. Right: equal to eager.
    """
    z, y = R(8, 6, grad=True), torch.tensor([0, 1, 0, 2, 1, 2, 0, 1])

    def by_hand(z, y):
        s = z @ z.t() / 0.07
        s = s - s.max(1, keepdim=True)[0].detach()
        i = torch.arange(8, device=z.device)
        off = (i[:, None] != i[None]).to(z.dtype)
        logs = s - torch.log((torch.exp(s) * off).sum(1, keepdim=True))
        alike = (y[:, None] == y[None]).to(z.dtype) * off
        return -((alike * logs).sum(1) / alike.sum(1)).mean()

    def masked(z, y):
        i = torch.arange(8, device=z.device)
        logs = torch.log_softmax((z @ z.t() / 0.5).masked_fill(i[:, None] == i[None], -INF), 1)
        alike = (y[:, None] == y[None]) & (i[:, None] != i[None])
        return -(torch.where(alike, logs, 0.0).sum(1) / alike.sum(1)).mean()

    def of_similarities(z, y):
        similar = F.normalize(z, dim=-1) @ F.normalize(z.detach(), dim=-1).t()
        return F.cross_entropy(similar / 0.1, torch.arange(8, device=z.device))

    check_dtypes(jit, by_hand, z, y, dtypes=(F32,), rtol=1e-4, atol=1e-4)
    for fn in (masked, of_similarities):
        check_dtypes(jit, fn, z, y, dtypes=(F32,))


def test_slots_compete(jit):
    """A softmax over slots, or over slots and heads flattened, then divided by its sum along the inputs.

    Source: singhgautam/slate issue 3; wbw520/BotCL issue 5. Right: equal to eager, gradients too.
    """

    def over_slots(x):
        a = torch.softmax(x * 0.5, dim=1) + 1e-8
        return a / a.sum(-1, keepdim=True)

    def over_slots_and_heads(x):
        a = torch.softmax(x.permute(0, 3, 1, 2).flatten(-2) * 0.5, -1)
        a = a.view(2, 11, 3, 4).permute(0, 2, 3, 1) + 1e-8
        return a / a.sum(-1, keepdim=True)

    x = R(2, 3, 4, 11, grad=True)
    check_dtypes(jit, over_slots, x)
    assert softmaxes(check_dtypes(jit, over_slots_and_heads, x)) == ["triton_ascend_softmax"]


def test_the_largest_and_the_likeliest_tokens(jit):
    """top-k and top-p: sorted logits, the tail by its cumulative probability set to -inf, back in the old order.

    Source: sgl-project/sglang PRs 12692, 39609; vllm-project/vllm-ascend PRs 8246, 13697. Right: equal to eager;
    what was filtered has probability 0.
    """

    def fn(x, p, k):
        logits, index = torch.sort(x, dim=-1)
        n = x.shape[1]
        least = torch.gather(logits, 1, (n - k).clamp(max=n - 1)[:, None])
        logits = torch.where(logits < least, -INF, logits)
        below = torch.cumsum(torch.softmax(logits, -1, dtype=F32), -1) <= 1 - p[:, None]
        logits = torch.where(below & (torch.arange(n, device=x.device) != n - 1), -INF, logits)
        back = torch.scatter(torch.zeros_like(logits), 1, index, logits)
        return torch.softmax(back, -1), torch.log_softmax(back / 0.8, -1)

    p, k = torch.tensor([0.9, 0.5, 1.0]), torch.tensor([50, 10, 300])
    chosen, logs = check(jit, fn, R(3, 300, scale=2), p, k)
    zero = cpu(chosen) == 0
    assert zero.sum(-1)[1] >= 290
    assert cpu(logs)[zero].eq(-INF).all()


def test_a_softmax_whose_rows_sum_to_less_than_one(jit):
    """One more zero in the denominator: written out, by a column of zeros, by the logsumexp.

    Source: softmax1/Flash-Attention-Softmax-N PRs 17, 18, 19. Right: equal to eager and to each other.
    """

    def written_out(x):
        m = x.max(-1, keepdim=True)[0].clamp(min=0)
        e = torch.exp(x - m)
        return e / (torch.exp(-m) + e.sum(-1, keepdim=True))

    def by_a_column(x):
        return torch.softmax(torch.cat([x, torch.zeros_like(x[..., :1])], -1), -1)[..., :-1]

    def by_the_logsumexp(x):
        return torch.softmax(x, -1) * torch.sigmoid(torch.logsumexp(x, -1, keepdim=True))

    x = R(3, 4, 9, grad=True, scale=3)
    want = by_a_column(x.detach())
    for fn in (written_out, by_a_column, by_the_logsumexp):
        check_dtypes(jit, fn, x)
        same(jit(fn)(x.detach().to(DEV)), want, rtol=1e-4, atol=1e-6)
