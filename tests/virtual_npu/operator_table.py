"""One expression for each emulated aclnn operator that makes torch_npu call it. Needs no npu to import.

An expression gets `t`, which makes the same tensors on either device: `t(4, 6)` of the dtype under test, `t.index(…)`,
`t.mask(…)` and so on; `t.n` is a size that is also tried as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HALF_OR_FLOAT = FLOATS[:3]
FLOAT = FLOATS[:1]
NUMBERS = (torch.float32, torch.bfloat16, torch.int32, torch.int64)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)
ANY = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
COMPLEX = (torch.complex64,)


class Inputs:
    """Makes inputs on one device. Two of them give equal tensors in equal order."""

    def __init__(self, device: str, dtype: torch.dtype, layout: str = "contiguous", n: int = 4) -> None:
        self.device, self.dtype, self.layout, self.n = device, dtype, layout, n
        self.generator = torch.Generator().manual_seed(17)

    def __call__(
        self, *shape: int, low: float = -3.0, high: float = 3.0, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """A tensor of values in [low, high], in the layout under test."""
        dtype = dtype or self.dtype
        values = torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low
        if dtype is torch.bool:
            return self._place(values > 0)
        if dtype is torch.uint8:
            values = values.abs()
        if dtype.is_complex:
            return self._place(torch.complex(values, values.flip(0) if shape else values).to(dtype))
        return self._place(values.round().to(dtype) if not dtype.is_floating_point else values.to(dtype))

    def positive(self, *shape: int) -> torch.Tensor:
        return self(*shape, low=0.5)

    def unit(self, *shape: int) -> torch.Tensor:
        """Values inside (0, 1)."""
        return self(*shape, low=0.05, high=0.95)

    def float(self, *shape: int) -> torch.Tensor:
        return self(*shape, dtype=torch.float32)

    def mask(self, *shape: int) -> torch.Tensor:
        return self(*shape, dtype=torch.bool)

    def index(self, *shape: int, high: int) -> torch.Tensor:
        """int64 values in [0, high)."""
        return self._place(torch.randint(0, max(high, 1), shape, generator=self.generator))

    def distinct(self, *shape: int) -> torch.Tensor:
        """No two values equal, so that sorting has one answer."""
        order = torch.randperm(math.prod(shape), generator=self.generator).reshape(shape)
        return self._place(((order.double() - order.numel() / 2) / (1 if self.dtype in INTEGERS else 4)).to(self.dtype))

    def _place(self, values: torch.Tensor) -> torch.Tensor:
        if self.layout == "contiguous" or not values.dim():
            return values.to(self.device)
        # Every second element of a wider, transposed buffer that starts elsewhere: strides and an offset.
        turned = values.transpose(0, -1)
        buffer = torch.zeros(*turned.shape[:-1], 2 * turned.shape[-1] + 1, dtype=values.dtype)
        buffer[..., 1::2] = turned
        return buffer.to(self.device)[..., 1::2].transpose(0, -1)


def gradient(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients of the inputs for an upstream gradient of cosines."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    upstream = torch.cos(torch.arange(out.numel(), dtype=torch.float32)).reshape(out.shape).to(out.device, out.dtype)
    return torch.autograd.grad(out, leaves, upstream)


Expression = Callable[[Inputs], Any]
OPERATORS: dict[str, tuple[Expression, tuple[torch.dtype, ...]]] = {}


def add(dtypes: tuple[torch.dtype, ...], **expressions: Expression) -> None:
    for name, expression in expressions.items():
        assert f"aclnn{name}" not in OPERATORS, name
        OPERATORS[f"aclnn{name}"] = (expression, dtypes)


# ---- one input ------------------------------------------------------------------------------------------------------
def _unary(function: Callable[[torch.Tensor], Any], low: float = -3.0, high: float = 3.0) -> Expression:
    return lambda t: (function(t(t.n, 6, low=low, high=high)), function(t(low=low, high=high)))


def _in_place(name: str, low: float = -3.0, high: float = 3.0) -> Expression:
    return lambda t: getattr(torch.Tensor, name)(t(t.n, 6, low=low, high=high))


UNARY = {
    "Acos": ("acos", -0.9, 0.9), "Acosh": ("acosh", 1.1, 4), "Asin": ("asin", -0.9, 0.9), "Asinh": ("asinh", -3, 3),
    "Atan": ("atan", -3, 3), "Atanh": ("atanh", -0.9, 0.9), "Ceil": ("ceil", -3, 3), "Cos": ("cos", -3, 3),
    "Cosh": ("cosh", -3, 3), "Erf": ("erf", -3, 3), "Erfc": ("erfc", -2, 2), "Erfinv": ("erfinv", -0.9, 0.9),
    "Exp": ("exp", -3, 3), "Exp2": ("exp2", -3, 3), "Expm1": ("expm1", -3, 3), "Floor": ("floor", -3, 3),
    "Frac": ("frac", -3, 3), "Log": ("log", 0.1, 3), "Log10": ("log10", 0.1, 3), "Log1p": ("log1p", 0, 3),
    "Log2": ("log2", 0.1, 3), "Reciprocal": ("reciprocal", 0.5, 3), "Relu": ("relu", -3, 3), "Round": ("round", -3, 3),
    "Rsqrt": ("rsqrt", 0.5, 3), "Sigmoid": ("sigmoid", -3, 3), "Sin": ("sin", -3, 3), "Sinc": ("sinc", -3, 3),
    "Sinh": ("sinh", -3, 3), "Sqrt": ("sqrt", 0, 3), "Tan": ("tan", -1, 1), "Tanh": ("tanh", -3, 3),
    "Trunc": ("trunc", -3, 3),
}  # fmt: skip
for _name, (_function, _low, _high) in UNARY.items():
    add(FLOATS, **{_name: _unary(getattr(torch, _function), _low, _high)})
    add(FLOATS, **{f"Inplace{_name}": _in_place(f"{_function}_", _low, _high)})
add(
    FLOATS,
    Hardsigmoid=_unary(F.hardsigmoid),
    InplaceHardsigmoid=lambda t: F.hardsigmoid(t(t.n, 6), inplace=True),
    Hardswish=_unary(F.hardswish),
    InplaceHardswish=lambda t: F.hardswish(t(t.n, 6), inplace=True),
    IsFinite=lambda t: torch.isfinite(t(t.n, 6) / 0),
    IsNegInf=lambda t: torch.isneginf(t(t.n, 6) / 0),
    IsPosInf=lambda t: torch.isposinf(t(t.n, 6) / 0),
    Mish=_unary(F.mish),
    InplaceMish=lambda t: F.mish(t(t.n, 6), inplace=True),
    Silu=_unary(F.silu),
    RoundDecimals=lambda t: torch.round(t(t.n, 6), decimals=1),
    InplaceRoundDecimals=lambda t: t(t.n, 6).round_(decimals=1),
    NanToNum=lambda t: torch.nan_to_num(t(t.n, 6).log(), nan=0.5),
    InplaceNanToNum=lambda t: t(t.n, 6).log().nan_to_num_(nan=0.5),
)
add(
    ANY,
    LogicalNot=lambda t: torch.logical_not(t(t.n, 6)),
    InplaceLogicalNot=lambda t: t(t.n, 6).logical_not_(),
    Cast=lambda t: torch.ops.npu.npu_dtype_cast(t(t.n, 6), torch.float16) if t.device == "npu" else t(t.n, 6).half(),
    InplaceCopy=lambda t: torch.empty(t.n, 6, device=t.device).copy_(t(t.n, 6)),
    InplaceZero=lambda t: t(t.n, 6).zero_(),
    InplaceOne=lambda t: torch.ones(t.n, 6, dtype=t.dtype, device=t.device),
    InplaceFillScalar=lambda t: t(t.n, 6).fill_(3),
    InplaceFillTensor=lambda t: t(t.n, 6).fill_(t()),
)
add(
    NUMBERS,
    Abs=_unary(torch.abs),
    Neg=_unary(torch.neg),
    Sign=_unary(torch.sign),
    Signbit=_unary(torch.signbit),
)
add((*INTEGERS, torch.bool), BitwiseNot=lambda t: torch.bitwise_not(t(t.n, 6)))
add(
    FLOAT,
    AddRelu=lambda t: torch.ops.aten._add_relu(t(t.n, 6), t(t.n, 6)),
    InplaceAddRelu=lambda t: torch.ops.aten._add_relu_(t(t.n, 6), t(t.n, 6)),
)
add(COMPLEX, AngleV2=lambda t: torch.angle(t(t.n, 6)))
add(
    FLOAT,
    Complex=lambda t: torch.complex(t(t.n, 6), t(t.n, 6)),
    Polar=lambda t: torch.polar(t.positive(t.n, 6), t(t.n, 6)),
)


# ---- two inputs: each with equal shapes, a broadcast row, a broadcast column, and a 0-d tensor -----------------------
def _binary(function: Callable[[Any, Any], Any], low: float = 0.5) -> Expression:
    return lambda t: tuple(
        function(t(t.n, 6), t(*shape, low=low)) for shape in ((t.n, 6), (6,), (t.n, 1), (1, 6), (2, t.n, 6), ())
    )


def _binary_in_place(name: str, low: float = 0.5) -> Expression:
    return lambda t: tuple(
        getattr(torch.Tensor, name)(t(t.n, 6), t(*shape, low=low)) for shape in ((t.n, 6), (6,), (t.n, 1), ())
    )


def _scalar(function: Callable[[Any, Any], Any]) -> Expression:
    return lambda t: tuple(function(t(t.n, 6), value) for value in ((2,) if t.dtype in INTEGERS else (2, 1.5)))


def _scalar_in_place(name: str) -> Expression:
    return lambda t: getattr(torch.Tensor, name)(t(t.n, 6), 2)


for _name, _function in {
    "Eq": "eq", "Ge": "ge", "Gt": "gt", "Le": "le", "Lt": "lt", "Ne": "ne",
}.items():  # fmt: skip
    add(
        NUMBERS,
        **{
            f"{_name}Tensor": _binary(getattr(torch, _function), -3),
            f"Inplace{_name}Tensor": _binary_in_place(f"{_function}_", -3),
            f"{_name}Scalar": _scalar(getattr(torch, _function)),
            f"Inplace{_name}Scalar": _scalar_in_place(f"{_function}_"),
        },
    )
for _name, _function, _dtypes in (
    ("BitwiseAnd", "bitwise_and", INTEGERS), ("BitwiseXor", "bitwise_xor", INTEGERS), ("Fmod", "fmod", NUMBERS),
):  # fmt: skip
    add(
        _dtypes,
        **{
            f"{_name}Tensor": _binary(getattr(torch, _function)),
            f"Inplace{_name}Tensor": _binary_in_place(f"{_function}_"),
            f"{_name}Scalar": _scalar(getattr(torch, _function)),
            f"Inplace{_name}Scalar": _scalar_in_place(f"{_function}_"),
        },
    )
for _name, _function, _dtypes in (
    ("Div", "div", FLOATS), ("FloorDivide", "floor_divide", NUMBERS), ("Mul", "mul", NUMBERS),
    ("Add", "add", NUMBERS), ("Sub", "sub", NUMBERS),
):  # fmt: skip
    add(
        _dtypes,
        **{
            _name: _binary(getattr(torch, _function)),
            f"Inplace{_name}": _binary_in_place(f"{_function}_"),
            f"{_name}s": _scalar(getattr(torch, _function)),
            f"Inplace{_name}s": _scalar_in_place(f"{_function}_"),
        },
    )
add(
    NUMBERS,
    AddV3=lambda t: torch.add(torch.tensor(2), t(t.n, 6)),
    Rsub=_binary(torch.rsub),
    Rsubs=_scalar(torch.rsub),
    Maximum=_binary(torch.maximum, -3),
    Minimum=_binary(torch.minimum, -3),
    Equal=lambda t: torch.tensor([torch.equal(t(t.n, 6), t(t.n, 6)), torch.equal(x := t(t.n, 6), x.clone())]),
    RemainderTensorTensor=_binary(torch.remainder),
    InplaceRemainderTensorTensor=_binary_in_place("remainder_"),
    RemainderTensorScalar=_scalar(torch.remainder),
    InplaceRemainderTensorScalar=_scalar_in_place("remainder_"),
    RemainderScalarTensor=lambda t: torch.remainder(7, t.positive(t.n, 6)),
    PowTensorScalar=_scalar(torch.pow),
    InplacePowTensorScalar=_scalar_in_place("pow_"),
    ClampMin=lambda t: torch.clamp_min(t(t.n, 6), -1),
    ClampMax=lambda t: torch.clamp_max(t(t.n, 6), 1),
    InplaceClampMax=lambda t: t(t.n, 6).clamp_max_(1),
    Clamp=lambda t: (torch.clamp(t(t.n, 6), -1, 1), torch.clamp(t(t.n, 6), min=0)),
    ClampMinTensor=_binary(torch.clamp_min, -3),
    ClampMaxTensor=_binary(torch.clamp_max, -3),
    InplaceClampMinTensor=_binary_in_place("clamp_min_", -3),
    InplaceClampMaxTensor=_binary_in_place("clamp_max_", -3),
    ClampTensor=lambda t: torch.clamp(t(t.n, 6), t(6), t(t.n, 6)),
    LessScalar=lambda t: torch.ge(torch.tensor(1), t(t.n, 6)),
    SWhere=lambda t: (torch.where(t.mask(t.n, 6), t(t.n, 6), t(6)), torch.where(t.mask(t.n, 1), t(t.n, 6), 2)),
    InplaceMaskedFillScalar=lambda t: t(t.n, 6).masked_fill_(t.mask(6), 2),
    InplaceMaskedFillTensor=lambda t: t(t.n, 6).masked_fill_(t.mask(t.n, 6), t()),
    IsClose=lambda t: torch.isclose(t(t.n, 6), t(t.n, 6), rtol=1.0),
)
add(
    ANY,
    LogicalAnd=_binary(torch.logical_and, -3),
    InplaceLogicalAnd=_binary_in_place("logical_and_", -3),
    LogicalOr=_binary(torch.logical_or, -3),
    InplaceLogicalOr=_binary_in_place("logical_or_", -3),
    LogicalXor=_binary(torch.logical_xor, -3),
)
add(
    INTEGERS,
    BitwiseOrTensor=_binary(torch.bitwise_or),
    BitwiseOrScalar=_scalar(torch.bitwise_or),
    LeftShift=lambda t: t(t.n, 6) << t(t.n, 6, low=0),
    LeftShifts=lambda t: t(t.n, 6) << 2,
    RightShift=lambda t: t(t.n, 6) >> t(t.n, 6, low=0),
    Gcd=_binary(torch.gcd),
)
add(
    FLOATS,
    Atan2=_binary(torch.atan2),
    InplaceAtan2=_binary_in_place("atan2_"),
    LogAddExp=_binary(torch.logaddexp, -3),
    LogAddExp2=_binary(torch.logaddexp2, -3),
    XLogYTensor=_binary(torch.xlogy),
    XLogYScalarOther=_scalar(torch.xlogy),
    InplaceXLogYScalarOther=_scalar_in_place("xlogy_"),
    XLogYScalarSelf=lambda t: torch.xlogy(2, t.positive(t.n, 6)),
    DivMod=lambda t: tuple(torch.div(t(t.n, 6), t.positive(6), rounding_mode=mode) for mode in ("trunc", "floor")),
    DivMods=lambda t: tuple(torch.div(t(t.n, 6), 1.5, rounding_mode=mode) for mode in ("trunc", "floor")),
    InplaceDivMod=lambda t: t(t.n, 6).div_(t.positive(6), rounding_mode="trunc"),
    InplaceDivMods=lambda t: t(t.n, 6).div_(1.5, rounding_mode="floor"),
    PowTensorTensor=lambda t: torch.pow(t.positive(t.n, 6), t(6)),
    PowScalarTensor=lambda t: torch.pow(2, t(t.n, 6)),
    InplacePowTensorTensor=lambda t: t.positive(t.n, 6).pow_(t(6)),
    Lerp=lambda t: torch.lerp(t(t.n, 6), t(t.n, 6), t(t.n, 6)),
    InplaceLerp=lambda t: t(t.n, 6).lerp_(t(t.n, 6), t(t.n, 6)),
    Lerps=lambda t: torch.lerp(t(t.n, 6), t(t.n, 6), 0.3),
    InplaceLerps=lambda t: t(t.n, 6).lerp_(t(t.n, 6), 0.3),
    Addcdiv=lambda t: torch.addcdiv(t(t.n, 6), t(t.n, 6), t.positive(6), value=0.5),
    InplaceAddcdiv=lambda t: t(t.n, 6).addcdiv_(t(t.n, 6), t.positive(6), value=0.5),
    Addcmul=lambda t: torch.addcmul(t(t.n, 6), t(t.n, 6), t(6), value=0.5),
    InplaceAddcmul=lambda t: t(t.n, 6).addcmul_(t(t.n, 6), t(6), value=0.5),
)

# ---- reductions, scans, sorting -------------------------------------------------------------------------------------
add(
    (*FLOATS, torch.int64, torch.int32, torch.bool),
    ReduceSum=lambda t: (t(t.n, 6).sum(), t(t.n, 6).sum(0), t(t.n, 2, 6).sum((0, -1), keepdim=True)),
    All=lambda t: (t(t.n, 6).all(), t(t.n, 6).all(1), t(t.n, 6).all(0, keepdim=True)),
    Any=lambda t: (t(t.n, 6).any(), t(t.n, 6).any(1), t(t.n, 6).any(0, keepdim=True)),
)
add(
    NUMBERS,
    Amax=lambda t: (t(t.n, 6).amax(1), t(t.n, 6).amax((0, 1)), t(t.n, 6).amax(-1, keepdim=True)),
    Amin=lambda t: (t(t.n, 6).amin(1), t(t.n, 6).amin((0, 1)), t(t.n, 6).amin(-1, keepdim=True)),
    Aminmax=lambda t: torch.aminmax(t(t.n, 6), dim=1),
    AminmaxAll=lambda t: torch._aminmax(t(t.n, 6)),
    AminmaxDim=lambda t: torch._aminmax(t(t.n, 6), 1),
    Max=lambda t: t(t.n, 6).max(),
    Min=lambda t: t(t.n, 6).min(),
    MaxDim=lambda t: tuple(t.distinct(t.n, 6).max(1)),
    MinDim=lambda t: tuple(t.distinct(t.n, 6).min(-1, keepdim=True)),
    ArgMax=lambda t: (t.distinct(t.n, 6).argmax(1), t.distinct(t.n, 6).argmax()),
    ArgMin=lambda t: (t.distinct(t.n, 6).argmin(1, keepdim=True), t.distinct(t.n, 6).argmin()),
    Prod=lambda t: t(t.n, 3).prod(),
    ProdDim=lambda t: t(t.n, 3).prod(1, keepdim=True),
    Cumsum=lambda t: (t(t.n, 6).cumsum(1), t(t.n, 6).cumsum(0)),
    Cumprod=lambda t: torch.cumprod(t(t.n, 4), 1, dtype=t.dtype, out=t(t.n, 4)),
    Cummax=lambda t: tuple(t.distinct(t.n, 6).cummax(1)),
    Cummin=lambda t: tuple(t.distinct(t.n, 6).cummin(1)),
    Sort=lambda t: (*t.distinct(t.n, 6).sort(), *t.distinct(t.n, 6).sort(dim=0, descending=True, stable=True)),
    Topk=lambda t: (*t.distinct(t.n, 6).topk(3), *t.distinct(t.n, 6).topk(2, largest=False)),
    Kthvalue=lambda t: torch.kthvalue(t.distinct(t.n, 6), 2, out=(t(t.n), t.index(t.n, high=9))),
    MaskedSelect=lambda t: t(t.n, 6).masked_select(t.mask(t.n, 6)),
    Nonzero=lambda t: torch.nonzero(t(t.n, 6, low=-1, high=1)),
    Unique=lambda t: torch._unique(t(t.n, 6), True, True),
    Unique2=lambda t: torch.unique(t(t.n, 6), return_inverse=True, return_counts=True),
    UniqueConsecutive=lambda t: torch.unique_consecutive(t(t.n * 6), return_inverse=True, return_counts=True),
    UniqueDim=lambda t: torch.unique(t(4, 3, high=-1), dim=0, return_inverse=True, return_counts=True),
    SearchSorted=lambda t: torch.searchsorted(t.distinct(8).sort().values, t(t.n, 6), right=True),
    SearchSorteds=lambda t: torch.searchsorted(t.distinct(8).sort().values, 1),
    IsInScalarTensor=lambda t: torch.isin(2, t(t.n, 6)),
    IsInTensorScalar=lambda t: torch.isin(t(t.n, 6), 2),
    NonzeroV2=lambda t: t(t.n, 6).index_put_((t.mask(t.n, 6),), t()),
)
add(
    FLOATS,
    Mean=lambda t: (t(t.n, 6).mean(), t(t.n, 6).mean(1), t(t.n, 2, 6).mean((0, 2), keepdim=True)),
    ReduceNansum=lambda t: torch.nansum(t(t.n, 6).log(), 1),
    Std=lambda t: (t(t.n, 6).std(1), t(t.n, 6).std(1, correction=0, keepdim=True)),
    StdMeanCorrection=lambda t: torch.std_mean(t(t.n, 6), 1),
    VarCorrection=lambda t: torch.var(t(t.n, 6), 1, correction=0),
    VarMean=lambda t: torch.var_mean(t(t.n, 6), 1),
    Norm=lambda t: (torch.ops.aten.norm(t(t.n, 6), 2, [1]), torch.ops.aten.norm(t(t.n, 6), 1, [0], True)),
    LinalgVectorNorm=lambda t: (torch.linalg.vector_norm(t(t.n, 6)), torch.linalg.vector_norm(t(t.n, 6), 1, dim=1)),
    LogSumExp=lambda t: t(t.n, 6).logsumexp((0, 1)),
    Median=lambda t: t.distinct(t.n, 6).median(),
    MedianDim=lambda t: tuple(t.distinct(t.n, 6).median(1)),
    NanMedian=lambda t: t.distinct(t.n, 6).nanmedian(),
    NanMedianDim=lambda t: tuple(t.distinct(t.n, 6).nanmedian(1)),
    Renorm=lambda t: torch.renorm(t(t.n, 6), 2, 1, 1.0),
    InplaceRenorm=lambda t: t(t.n, 6).renorm_(2, 1, 1.0),
)
add((torch.float32, torch.int64), Trace=lambda t: torch.trace(t(5, 5)))
add(FLOAT, Histc=lambda t: torch.histc(t(t.n, 6), 5, -3, 3))
add(INTEGERS[:2], Bincount=lambda t: torch.bincount(t(20, low=0), minlength=6))
