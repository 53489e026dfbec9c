"""The rest of operator_table: indexing, foreach, linear algebra, neural networks, images. Kept apart for size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from operator_table import (
    ANY,
    FLOAT,
    FLOATS,
    HALF_OR_FLOAT,
    INTEGERS,
    NUMBERS,
    UNARY,
    Expression,
    Inputs,
    add,
    gradient,
)

aten = torch.ops.aten


# ---- indexing, joining, making --------------------------------------------------------------------------------------
add(
    ANY,
    Index=lambda t: (
        t(5, 6)[t.index(t.n, high=5)],
        t(5, 6)[:, t.index(t.n, high=6)],
        t(5, 6)[t.index(t.n, 1, high=5), t.index(3, high=6)],
    ),
    IndexSelect=lambda t: t(5, 6).index_select(1, t.index(t.n, high=6)),
    Gather=lambda t: t(5, 6).gather(1, t.index(5, t.n, high=6)),
    Cat=lambda t: (torch.cat([t(t.n, 6), t(2, 6)]), torch.cat([t(4, 1), t(4, 0), t(4, 2)], -1)),
    Stack=lambda t: torch.stack([t(t.n, 6), t(t.n, 6)], 1),
    Repeat=lambda t: t(t.n, 3).repeat(2, 1, 2),
    RepeatInterleaveIntWithDim=lambda t: t(t.n, 3).repeat_interleave(2, dim=1),
    RepeatInterleaveInt=lambda t: t(t.n, 3).repeat_interleave(2),
    RepeatInterleaveWithDim=lambda t: t(3, t.n).repeat_interleave(t.index(3, high=4), dim=0),
    RepeatInterleave=lambda t: t(3).repeat_interleave(t.index(3, high=4)),
    Flip=lambda t: t(t.n, 6).flip(0, 1),
    Roll=lambda t: (t(t.n, 6).roll(1), t(t.n, 6).roll((1, 2), (0, 1))),
    Tril=lambda t: torch.tril(t(t.n, 6), 1),
    Triu=lambda t: torch.triu(t(t.n, 6), -1),
    InplaceTril=lambda t: t(t.n, 6).tril_(),
    InplaceTriu=lambda t: t(t.n, 6).triu_(1),
    ConstantPadNd=lambda t: F.pad(t(t.n, 6), (1, 2, 0, 1), value=1),
    Scatter=lambda t: t(5, 6).scatter(1, _permutation(t, 5, 3), t(5, 3)),
    InplaceScatter=lambda t: t(5, 6).scatter_(1, _permutation(t, 5, 3), t(5, 3)),
    ScatterValue=lambda t: t(5, 6).scatter(1, _permutation(t, 5, 3), 1),
    InplaceScatterValue=lambda t: t(5, 6).scatter_(1, _permutation(t, 5, 3), 1),
    IndexCopy=lambda t: t(5, 6).index_copy(0, t.index(1, high=5), t(1, 6)),
    InplaceIndexCopy=lambda t: t(5, 6).index_copy_(0, t.index(1, high=5), t(1, 6)),
    IndexFill=lambda t: t(5, 6).index_fill(1, t.index(t.n, high=6), 1),
    InplaceIndexFill=lambda t: t(5, 6).index_fill_(1, t.index(t.n, high=6), 1),
    Take=lambda t: t(5, 6).take(t.index(t.n, high=30)),
    InplacePut=lambda t: t(5, 6).put_(t.index(1, high=30), t(1)),
    IndexPutImpl=lambda t: t(5, 6).index_put_((_permutation(t, 4),), t(4, 6)),
    InplaceMaskedScatter=lambda t: t(t.n, 6).masked_scatter_(t.mask(t.n, 6), t(t.n, 6)),
    InplaceFillDiagonal=lambda t: t(5, 6).fill_diagonal_(1),
)
add(FLOAT, SplitWithSize=lambda t: _split(t))
add(
    NUMBERS,
    IndexAdd=lambda t: (
        t(5, 6).index_add(0, t.index(3, high=5), t(3, 6)),
        t(5, 6).index_add_(1, t.index(2, high=6), t(5, 2)),
    ),
    ScatterAdd=lambda t: t(5, 6).scatter_add(1, t.index(5, 3, high=6), t(5, 3)),
    Arange=lambda t: torch.arange(1, 7, 2, dtype=t.dtype, device=t.device),
    Range=lambda t: torch.range(1, 7, 2, dtype=t.dtype, device=t.device),
    Eye=lambda t: (torch.eye(3, dtype=t.dtype, device=t.device), torch.eye(2, 4, dtype=t.dtype, device=t.device)),
)
add(
    FLOAT,
    Linspace=lambda t: torch.linspace(0, 1, 7, device=t.device),
    LogSpace=lambda t: torch.logspace(0, 1, 7, device=t.device),
    ChannelShuffle=lambda t: torch.channel_shuffle(t(2, 6, 3, 3), 2),
    EmbeddingRenorm=lambda t: aten.embedding_renorm_(t(5, 6), t.index(3, high=5), 1.0, 2.0),
    UnfoldGrad=lambda t: gradient(lambda x: x.unfold(1, 3, 2), t(4, 7)),
)
add(
    FLOATS,
    Embedding=lambda t: F.embedding(t.index(t.n, 2, high=5), t(5, 6)),
    EmbeddingDenseBackward=lambda t: gradient(lambda w: F.embedding(t.index(7, high=5), w, padding_idx=1), t(5, 6)),
)
add(INTEGERS[1:2], OneHot=lambda t: F.one_hot(t.index(t.n, 3, high=5), 5))
for _dims, _shape, _padding in (
    (1, (2, 3, 6), (2, 1)),
    (2, (2, 3, 6, 5), (2, 1, 1, 2)),
    (3, (2, 2, 4, 5, 4), (1, 2, 1, 1, 2, 1)),
):
    for _name, _mode in (("Reflection", "reflect"), ("Replication", "replicate")):
        add(
            FLOAT,
            **{
                f"{_name}Pad{_dims}d": lambda t, s=_shape, p=_padding, m=_mode: F.pad(t(*s), p, m),
                f"{_name}Pad{_dims}dBackward": lambda t, s=_shape, p=_padding, m=_mode: gradient(
                    lambda x: F.pad(x, p, m), t(*s)
                ),
            },
        )


def _permutation(t: Inputs, rows: int, columns: int | None = None) -> torch.Tensor:
    """Indices without repetition along the last axis: what a scatter writes twice is undefined."""
    values = (
        torch.arange(rows)
        if columns is None
        else torch.stack([torch.randperm(columns, generator=t.generator) for _ in range(rows)])
    )
    return values.to(t.device)


def _split(t: Inputs) -> list[torch.Tensor]:
    """What torch_npu gives to one operator: few rows, more than 65536 columns, more than 32 parts."""
    sizes = [2000 + i for i in range(33)]
    out = [torch.empty(2, size, device=t.device) for size in sizes]
    torch.split_with_sizes_copy(t(2, sum(sizes)), sizes, 1, out=out)
    return out


# ---- lists of tensors -----------------------------------------------------------------------------------------------
def _lists(function: Callable[..., Any], low: float = -3.0, high: float = 3.0, lists: int = 1) -> Expression:
    def expression(t: Inputs) -> Any:
        return tuple(
            function(*([t(*shape, low=low, high=high) for shape in ((t.n, 6), (3,), (2, 2))] for _ in range(lists)))
        )

    return expression


for _name in (
    "Acos",
    "Asin",
    "Atan",
    "Cos",
    "Cosh",
    "Erf",
    "Erfc",
    "Exp",
    "Expm1",
    "Log",
    "Log10",
    "Log1p",
    "Log2",
    "Reciprocal",
    "Sigmoid",
    "Sin",
    "Sinh",
    "Sqrt",
    "Tan",
    "Tanh",
):
    _function, _low, _high = UNARY[_name]
    add(HALF_OR_FLOAT, **{f"Foreach{_name}": _lists(getattr(torch, f"_foreach_{_function}"), _low, _high)})
add(
    HALF_OR_FLOAT,
    ForeachAbs=_lists(torch._foreach_abs),
    ForeachNeg=_lists(torch._foreach_neg),
    ForeachSign=_lists(torch._foreach_sign),
    ForeachRoundOffNumberV2=lambda t: tuple(
        _lists(function)(t)
        for function in (torch._foreach_floor, torch._foreach_round, torch._foreach_trunc, torch._foreach_frac)
    ),
    ForeachCopy=lambda t: _written(torch._foreach_copy_, [t(t.n, 6), t(3)], [t(t.n, 6), t(3)]),
    ForeachZeroInplace=lambda t: _written(torch._foreach_zero_, [t(t.n, 6), t(3)]),
    ForeachNorm=lambda t: (*torch._foreach_norm([t(4, 6), t(3)]), *torch._foreach_norm([t(4, 6), t(3)], 1)),
    ForeachAddListV2=lambda t: _lists(lambda a, b: torch._foreach_add(a, b, alpha=0.5), lists=2)(t),
    ForeachSubListV2=lambda t: _lists(lambda a, b: torch._foreach_sub(a, b, alpha=0.5), lists=2)(t),
    ForeachMulList=_lists(torch._foreach_mul, lists=2),
    ForeachDivList=_lists(torch._foreach_div, 0.5, lists=2),
    ForeachMaximumList=_lists(torch._foreach_maximum, lists=2),
    ForeachMinimumList=_lists(torch._foreach_minimum, lists=2),
    ForeachPowList=_lists(torch._foreach_pow, 0.5, lists=2),
    ForeachPowScalarAndTensor=_lists(lambda a: torch._foreach_pow(2.0, a)),
    ForeachLerpList=_lists(torch._foreach_lerp, lists=3),
    ForeachLerpScalar=_lists(lambda a, b: torch._foreach_lerp(a, b, 0.3), lists=2),
    ForeachAddcdivScalarV2=_lists(lambda a, b, c: torch._foreach_addcdiv(a, b, c, 0.5), 0.5, lists=3),
    ForeachAddcmulScalarV2=_lists(lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.5), lists=3),
    ForeachAddcdivScalarList=_lists(
        lambda a, b, c: torch._foreach_addcdiv(a, b, c, torch.tensor([1.0, 2.0, 3.0])), 0.5, lists=3
    ),
    ForeachAddcmulScalarList=_lists(
        lambda a, b, c: torch._foreach_addcmul(a, b, c, torch.tensor([1.0, 2.0, 3.0])), lists=3
    ),
)
for _name, _function in (
    ("Add", "add"),
    ("Sub", "sub"),
    ("Mul", "mul"),
    ("Div", "div"),
    ("Maximum", "maximum"),
    ("Minimum", "minimum"),
    ("Pow", "pow"),
):
    _call = getattr(torch, f"_foreach_{_function}")
    add(
        HALF_OR_FLOAT,
        **{
            f"Foreach{_name}ScalarV2": _lists(lambda a, f=_call: f(a, 2.0), 0.5),
            f"Foreach{_name}ScalarList": _lists(lambda a, f=_call: f(a, [1.0, 2.0, 3.0]), 0.5),
        },
    )


def _written(function: Callable[..., Any], *lists: list[torch.Tensor]) -> list[torch.Tensor]:
    function(*lists)
    return lists[0]


# ---- linear algebra -------------------------------------------------------------------------------------------------
add(
    FLOATS,
    Matmul=lambda t: (t(t.n, 6) @ t(6, 5), t(2, 3, t.n, 6) @ t(6, 5), t(t.n, 6) @ t(6)),
    Mm=lambda t: torch.mm(t(t.n, 6), t(6, 5)),
    BatchMatMul=lambda t: torch.bmm(t(2, t.n, 6), t(2, 6, 5)),
    Mv=lambda t: torch.mv(t(t.n, 6), t(6)),
    Dot=lambda t: torch.dot(t(6), t(6)),
    Addmm=lambda t: (
        torch.addmm(t(5), t(t.n, 6), t(6, 5)),
        torch.addmm(t(t.n, 5), t(t.n, 6), t(6, 5), beta=0.5, alpha=2),
    ),
    InplaceAddmm=lambda t: t(t.n, 5).addmm_(t(t.n, 6), t(6, 5), beta=0.5),
    Addmv=lambda t: torch.addmv(t(t.n), t(t.n, 6), t(6), beta=0.5),
    Addr=lambda t: torch.addr(t(t.n, 6), t(t.n), t(6), beta=0.5),
    InplaceAddr=lambda t: t(t.n, 6).addr_(t(t.n), t(6)),
    Baddbmm=lambda t: torch.baddbmm(t(2, t.n, 5), t(2, t.n, 6), t(2, 6, 5), beta=0.5),
    Addbmm=lambda t: torch.addbmm(t(t.n, 5), t(2, t.n, 6), t(2, 6, 5)),
)
add(
    FLOAT,
    Inverse=lambda t: torch.inverse(_well_conditioned(t)),
    LinalgCholesky=lambda t: torch.linalg.cholesky(_well_conditioned(t) @ _well_conditioned(t).mT),
    LinalgCross=lambda t: torch.linalg.cross(t(t.n, 3), t(t.n, 3)),
    LinalgQr=lambda t: [x.abs() for x in torch.linalg.qr(_well_conditioned(t))],
    Slogdet=lambda t: tuple(torch.slogdet(_well_conditioned(t))),
    TriangularSolve=lambda t: torch.triangular_solve(t(4, 2), _well_conditioned(t)).solution,
    Cdist=lambda t: torch.cdist(t(4, 6), t(5, 6)),
    Pdist=lambda t: F.pdist(t(4, 6)),
)


def _well_conditioned(t: Inputs) -> torch.Tensor:
    return t(4, 4, low=-0.5, high=0.5) + 2 * torch.eye(4, dtype=t.dtype, device=t.device)


# ---- neural networks ------------------------------------------------------------------------------------------------
def _npu(
    name: str, reference: Callable[..., Any], inputs: Callable[[Inputs], list[torch.Tensor]], **options: Any
) -> Expression:
    """An operator that only torch_npu has, against an expression of it in PyTorch."""

    def expression(t: Inputs) -> Any:
        return getattr(torch.ops.npu, name)(*inputs(t), **options) if t.device == "npu" else reference(*inputs(t))

    return expression


for _name, _function in {
    "Elu": F.elu,
    "Celu": F.celu,
    "LeakyRelu": F.leaky_relu,
    "Hardtanh": F.hardtanh,
    "Threshold": lambda x, inplace=False: F.threshold(x, 0.1, 0.5, inplace),
}.items():
    add(
        FLOATS,
        **{
            _name: lambda t, f=_function: f(t(t.n, 6)),
            f"Inplace{_name}": lambda t, f=_function: f(t(t.n, 6), inplace=True),
        },
    )
for _name, _function in {
    "EluBackward": F.elu,
    "LeakyReluBackward": F.leaky_relu,
    "HardtanhBackward": F.hardtanh,
    "MishBackward": F.mish,
    "HardsigmoidBackward": F.hardsigmoid,
    "HardswishBackward": F.hardswish,
    "SigmoidBackward": torch.sigmoid,
    "SiluBackward": F.silu,
    "TanhBackward": torch.tanh,
    "ThresholdBackward": F.relu,
    "SoftplusBackward": F.softplus,
    "SoftshrinkBackward": F.softshrink,
    "HardshrinkBackward": F.hardshrink,
    "LogSigmoidBackward": F.logsigmoid,
    "GluBackward": F.glu,
    "GeluBackward": F.gelu,
    "SoftmaxBackward": lambda x: torch.softmax(x, -1),
    "LogSoftmaxBackward": lambda x: torch.log_softmax(x, 0),
    "LogitGrad": lambda x: torch.logit(torch.sigmoid(x), 0.1),
}.items():
    add(FLOATS, **{_name: lambda t, f=_function: gradient(f, t(t.n, 6))})
add(
    FLOATS,
    Softmax=lambda t: (
        torch.softmax(t(t.n, 6), -1),
        torch.softmax(t(t.n, 6), 0),
        torch.softmax(t(t.n, 6), 1, dtype=torch.float32),
    ),
    LogSoftmax=lambda t: (torch.log_softmax(t(t.n, 6), -1), torch.log_softmax(t(3, t.n, 6), 1)),
    Gelu=lambda t: F.gelu(t(t.n, 6)),
    GeluV2=_npu("npu_gelu", lambda x: F.gelu(x, approximate="tanh"), lambda t: [t(t.n, 6)], approximate="tanh"),
    Hardshrink=lambda t: F.hardshrink(t(t.n, 6)),
    Softshrink=lambda t: F.softshrink(t(t.n, 6)),
    Softplus=lambda t: F.softplus(t(t.n, 6), 2),
    Prelu=lambda t: (F.prelu(t(t.n, 6), t(1)), F.prelu(t(2, 3, 4), t(3))),
    LogSigmoidForward=lambda t: F.logsigmoid(t(t.n, 6)),
    Logit=lambda t: torch.logit(t.unit(t.n, 6), 0.1),
    Glu=lambda t: F.glu(t(t.n, 6)),
    LayerNorm=lambda t: F.layer_norm(t(t.n, 6), (6,), t(6), t(6)),
)
add(
    FLOAT,
    LayerNormBackward=lambda t: gradient(lambda x, w, b: F.layer_norm(x, (6,), w, b), t(4, 6), t(6), t(6)),
)
add(
    FLOAT,
    PreluBackward=lambda t: (*gradient(F.prelu, t(4, 6), t(1)), *gradient(F.prelu, t(2, 3, 4), t(3))),
    GroupNorm=lambda t: F.group_norm(t(2, 6, 3), 3, t(6), t(6)),
    GroupNormBackward=lambda t: gradient(lambda x, w, b: F.group_norm(x, 3, w, b), t(2, 6, 3), t(6), t(6)),
    BatchNorm=lambda t: (
        F.batch_norm(t(4, 3, 5), t(3), t.positive(3), t(3), t(3), training=True),
        F.batch_norm(t(4, 3, 5), t(3), t.positive(3), t(3), t(3)),
    ),
    BatchNormBackward=lambda t: gradient(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True), t(4, 3, 5), t(3), t(3)
    ),
)


# ---- losses: each reduction, value and gradient ---------------------------------------------------------------------
def _loss(
    function: Callable[..., torch.Tensor], backward: bool, target: str = "__call__", first: str = "__call__"
) -> Expression:
    def expression(t: Inputs) -> Any:
        results = []
        for reduction in ("none", "mean", "sum"):
            x, y = getattr(t, first)(4, 6), getattr(t, target)(4, 6)
            f = lambda x: function(x, y, reduction=reduction)  # noqa: B023, E731
            results.append(gradient(f, x)[0] if backward else f(x))
        return tuple(results)

    return expression


for _name, _function, _options in (
    ("L1Loss", F.l1_loss, {}),
    ("MseLoss", F.mse_loss, {}),
    ("SoftMarginLoss", F.soft_margin_loss, {}),
    ("SmoothL1Loss", F.smooth_l1_loss, {}),
    ("KlDiv", F.kl_div, {"target": "unit"}),
    ("BinaryCrossEntropy", F.binary_cross_entropy, {"target": "unit", "first": "unit"}),
    ("BinaryCrossEntropyWithLogits", F.binary_cross_entropy_with_logits, {"target": "unit"}),
):
    add(FLOAT, **{_name: _loss(_function, False, **_options), f"{_name}Backward": _loss(_function, True, **_options)})


def _nll(t: Inputs, backward: bool, *tail: int) -> Any:
    results = []
    for reduction in ("none", "mean", "sum"):
        target = t.index(4, *tail, high=6)
        f = lambda x: F.nll_loss(x, target, t.positive(6), ignore_index=2, reduction=reduction)  # noqa: B023, E731
        x = t(4, 6, *tail)
        results.append(gradient(f, x)[0] if backward else f(x))
    return tuple(results)


add(
    FLOAT,
    NLLLoss=lambda t: _nll(t, False),
    NLLLossBackward=lambda t: _nll(t, True),
    NLLLoss2d=lambda t: _nll(t, False, 2, 3),
    NLLLoss2dBackward=lambda t: _nll(t, True, 2, 3),
)

# ---- images ---------------------------------------------------------------------------------------------------------
add(
    FLOAT,
    Convolution=lambda t: (
        F.conv1d(t(2, 4, 9), t(6, 2, 3), t(6), padding=1, groups=2),
        F.conv2d(t(2, 3, 8, 8), t(5, 3, 3, 3), t(5), stride=2, dilation=2),
        F.conv_transpose2d(t(2, 3, 4, 4), t(3, 5, 3, 3), stride=2, output_padding=1),
        F.conv3d(t(1, 2, 4, 4, 4), t(3, 2, 2, 2, 2)),
    ),
    ConvolutionBackward=lambda t: gradient(
        lambda x, w, b: F.conv2d(x, w, b, padding=1), t(2, 3, 6, 6), t(5, 3, 3, 3), t(5)
    ),
    Im2col=lambda t: F.unfold(t(2, 3, 6, 6), 3, padding=1, stride=2),
    Im2colBackward=lambda t: F.fold(t(2, 27, 9), (6, 6), 3, padding=1, stride=2),
    AvgPool2d=lambda t: F.avg_pool2d(t(2, 3, 8, 8), 3, 2, 1),
    AvgPool2dBackward=lambda t: gradient(lambda x: F.avg_pool2d(x, 2), t(2, 3, 8, 8)),
    AvgPool3d=lambda t: F.avg_pool3d(t(2, 3, 4, 4, 4), 2),
    AvgPool3dBackward=lambda t: gradient(lambda x: F.avg_pool3d(x, 2), t(2, 3, 4, 4, 4)),
    MaxPool2dWithMask=lambda t: F.max_pool2d(t.distinct(2, 3, 8, 8), 3, 2, 1),
    MaxPool2dWithMaskBackward=lambda t: gradient(lambda x: F.max_pool2d(x, 2), t.distinct(2, 3, 8, 8)),
    MaxPool3dWithArgmax=lambda t: F.max_pool3d(t.distinct(2, 3, 4, 4, 4), 2),
    MaxPool3dWithArgmaxBackward=lambda t: gradient(lambda x: F.max_pool3d(x, 2), t.distinct(2, 3, 4, 4, 4)),
    AdaptiveAvgPool2dBackward=lambda t: gradient(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), t(2, 3, 6, 6)),
    AdaptiveAvgPool3d=lambda t: F.adaptive_avg_pool3d(t(2, 3, 4, 4, 4), 2),
    AdaptiveAvgPool3dBackward=lambda t: gradient(lambda x: F.adaptive_avg_pool3d(x, 2), t(2, 3, 4, 4, 4)),
    AdaptiveMaxPool2d=lambda t: F.adaptive_max_pool2d(t.distinct(2, 3, 6, 6), (3, 2)),
    AdaptiveMaxPool2dBackward=lambda t: gradient(lambda x: F.adaptive_max_pool2d(x, (3, 2)), t.distinct(2, 3, 6, 6)),
    AdaptiveMaxPool3d=lambda t: F.adaptive_max_pool3d(t.distinct(2, 3, 4, 4, 4), 2),
    AdaptiveMaxPool3dBackward=lambda t: gradient(lambda x: F.adaptive_max_pool3d(x, 2), t.distinct(2, 3, 4, 4, 4)),
    MaxUnpool2d=lambda t: F.max_unpool2d(
        t(1, 2, 2, 2), torch.tensor([0, 3, 9, 15]).reshape(1, 1, 2, 2).repeat(1, 2, 1, 1).to(t.device), 2
    ),
    GridSampler2D=lambda t: F.grid_sample(t(2, 3, 5, 5), t(2, 4, 4, 2, low=-1, high=1), align_corners=False),
    GridSampler2DBackward=lambda t: gradient(
        lambda x, g: F.grid_sample(x, g, align_corners=True), t(2, 3, 5, 5), t(2, 4, 4, 2, low=-0.9, high=0.9)
    ),
    GridSampler3D=lambda t: F.grid_sample(t(2, 3, 4, 4, 4), t(2, 3, 3, 3, 3, low=-1, high=1), align_corners=False),
    GridSampler3DBackward=lambda t: gradient(
        lambda x, g: F.grid_sample(x, g, align_corners=True), t(2, 3, 4, 4, 4), t(2, 3, 3, 3, 3, low=-0.9, high=0.9)
    ),
    AdaptiveAvgPool2d=lambda t: F.adaptive_avg_pool2d(t(2, 3, 6, 6), (3, 2)),
    AffineGrid=lambda t: F.affine_grid(t(2, 2, 3), [2, 3, 5, 5], align_corners=False),
)
for _name, _mode, _shape, _size in (
    ("UpsampleNearest1d{}V2", "nearest", (2, 3, 5), 8),
    ("UpsampleNearest2d{}V2", "nearest", (2, 3, 5, 5), (8, 7)),
    ("UpsampleNearest3d", "nearest", (2, 3, 3, 3, 3), 5),
    ("UpsampleNearestExact1d", "nearest-exact", (2, 3, 5), 8),
    ("UpsampleNearestExact2d", "nearest-exact", (2, 3, 5, 5), (8, 7)),
    ("UpsampleNearestExact3d", "nearest-exact", (2, 3, 3, 3, 3), 5),
    ("UpsampleLinear1d", "linear", (2, 3, 5), 8),
    ("UpsampleBilinear2d", "bilinear", (2, 3, 5, 5), (8, 7)),
    ("UpsampleBicubic2d", "bicubic", (2, 3, 5, 5), (8, 7)),
    ("UpsampleTrilinear3d", "trilinear", (2, 3, 3, 3, 3), 5),
):
    _forward, _backward = _name.format(""), _name.replace("{}V2", "") + "Backward"
    if _mode == "bilinear":
        _backward += "V2"
    add(
        FLOAT,
        **{
            _forward: lambda t, s=_shape, z=_size, m=_mode: F.interpolate(t(*s), z, mode=m),
            _backward: lambda t, s=_shape, z=_size, m=_mode: gradient(lambda x: F.interpolate(x, z, mode=m), t(*s)),
        },
    )

for _name, _backward, _mode in (
    ("UpsampleBilinear2dAA", "UpsampleBilinear2dAABackward", "bilinear"),
    ("UpsampleBicubic2dAA", "UpsampleBicubic2dAAGrad", "bicubic"),
):
    add(
        FLOAT,
        **{
            _name: lambda t, m=_mode: F.interpolate(t(2, 3, 9, 9), (4, 5), mode=m, antialias=True),
            _backward: lambda t, m=_mode: gradient(
                lambda x: F.interpolate(x, (4, 5), mode=m, antialias=True), t(2, 3, 9, 9)
            ),
        },
    )


# ---- what only torch_npu has ----------------------------------------------------------------------------------------
def _rms_norm(x: torch.Tensor, gamma: torch.Tensor, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * rstd * (gamma.float() + offset)).to(x.dtype), rstd


def _rms_norm_gradient(t: Inputs) -> tuple[torch.Tensor, ...]:
    call = torch.ops.npu.npu_rms_norm if t.device == "npu" else _rms_norm
    return gradient(lambda x, gamma: call(x, gamma)[0], t(4, 6), t(6))


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _rotary_inputs(t: Inputs) -> list[torch.Tensor]:
    return [t(2, 3, 4, 8), t(1, 1, 4, 8), t(1, 1, 4, 8)]


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return F.silu(left) * right


def _fast_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _gradient(name: str, reference: Callable[..., Any], inputs: Callable[[Inputs], list[torch.Tensor]]) -> Expression:
    return lambda t: gradient(getattr(torch.ops.npu, name) if t.device == "npu" else reference, *inputs(t))


add(
    FLOAT,
    RmsNorm=_npu("npu_rms_norm", _rms_norm, lambda t: [t(t.n, 6), t(6)]),
    RmsNormGrad=_rms_norm_gradient,
    GemmaRmsNorm=_npu("npu_gemma_rms_norm", lambda x, g: _rms_norm(x, g, 1.0), lambda t: [t(t.n, 6), t(6)]),
    AddRmsNorm=_npu(
        "npu_add_rms_norm", lambda a, b, g: (*_rms_norm(a + b, g), a + b), lambda t: [t(t.n, 6), t(t.n, 6), t(6)]
    ),
    RotaryPositionEmbeddingV2=_npu("npu_rotary_mul", _rotary, _rotary_inputs),
    RotaryPositionEmbeddingGrad=_gradient("npu_rotary_mul", _rotary, _rotary_inputs),
    SwiGlu=_npu("npu_swiglu", _swiglu, lambda t: [t(t.n, 6)]),
    SwiGluGrad=_gradient("npu_swiglu", _swiglu, lambda t: [t(4, 6)]),
    FastGelu=_npu("npu_fast_gelu", _fast_gelu, lambda t: [t(t.n, 6)]),
    FastGeluBackward=_gradient("npu_fast_gelu", _fast_gelu, lambda t: [t(4, 6)]),
    GeluMul=_npu("npu_gelu_mul", lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], lambda t: [t(4, 6)]),
    GeluBackwardV2=_npu(
        "npu_gelu_backward",
        lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
        lambda t: [t(4, 6), t(4, 6)],
        approximate="tanh",
    ),
)
