// Elementwise operators: one value out for each (broadcast) value in.
#include "aclnn.h"

using namespace vnpu;

// ---- one input ------------------------------------------------------------------------------------------------------
#define UNARY(NAME, OP) \
  ACLNN(aclnn##NAME, (const Tensor& self, Tensor& out)) { at::OP##_out(out, self); }
#define INPLACE_UNARY(NAME, OP) \
  ACLNN(aclnnInplace##NAME, (Tensor& self)) { at::OP##_out(self, self); }
#define UNARY_BOTH(NAME, OP) UNARY(NAME, OP) INPLACE_UNARY(NAME, OP)

UNARY(Abs, abs)
UNARY_BOTH(Acos, acos)
UNARY_BOTH(Acosh, acosh)
UNARY(AngleV2, angle)
UNARY_BOTH(Asin, asin)
UNARY_BOTH(Asinh, asinh)
UNARY_BOTH(Atan, atan)
UNARY_BOTH(Atanh, atanh)
UNARY(BitwiseNot, bitwise_not)
UNARY_BOTH(Ceil, ceil)
UNARY_BOTH(Cos, cos)
UNARY_BOTH(Cosh, cosh)
UNARY_BOTH(Erf, erf)
UNARY_BOTH(Erfc, erfc)
UNARY_BOTH(Erfinv, erfinv)
UNARY_BOTH(Exp, exp)
UNARY_BOTH(Exp2, exp2)
UNARY_BOTH(Expm1, expm1)
UNARY_BOTH(Floor, floor)
UNARY_BOTH(Frac, frac)
UNARY_BOTH(Hardsigmoid, hardsigmoid)
UNARY_BOTH(Hardswish, hardswish)
UNARY(IsNegInf, isneginf)
UNARY(IsPosInf, isposinf)
UNARY_BOTH(Log, log)
UNARY_BOTH(Log10, log10)
UNARY_BOTH(Log1p, log1p)
UNARY_BOTH(Log2, log2)
UNARY_BOTH(LogicalNot, logical_not)
UNARY_BOTH(Mish, mish)
UNARY(Neg, neg)
UNARY_BOTH(Reciprocal, reciprocal)
UNARY_BOTH(Relu, relu)
UNARY_BOTH(Round, round)
UNARY_BOTH(Rsqrt, rsqrt)
UNARY_BOTH(Sigmoid, sigmoid)
UNARY(Sign, sgn)  // torch_npu calls it for sign and for sgn of complex numbers
UNARY(Signbit, signbit)
UNARY(Silu, silu)
UNARY_BOTH(Sin, sin)
UNARY_BOTH(Sinc, sinc)
UNARY_BOTH(Sinh, sinh)
UNARY_BOTH(Sqrt, sqrt)
UNARY_BOTH(Tan, tan)
UNARY_BOTH(Tanh, tanh)
UNARY_BOTH(Trunc, trunc)

ACLNN(aclnnIsFinite, (const Tensor& self, Tensor& out)) { out.copy_(at::isfinite(self)); }
ACLNN(aclnnRoundDecimals, (const Tensor& self, int64_t decimals, Tensor& out)) { at::round_out(out, self, decimals); }
ACLNN(aclnnInplaceRoundDecimals, (Tensor& self, int64_t decimals)) { at::round_out(self, self, decimals); }
ACLNN(aclnnNanToNum, (const Tensor& self, float nan, float posinf, float neginf, Tensor& out)) {
  at::nan_to_num_out(out, self, nan, posinf, neginf);
}
ACLNN(aclnnInplaceNanToNum, (Tensor& self, float nan, float posinf, float neginf)) {
  at::nan_to_num_out(self, self, nan, posinf, neginf);
}
ACLNN(aclnnCast, (const Tensor& self, ScalarType, Tensor& out)) { out.copy_(self); }
ACLNN(aclnnInplaceCopy, (Tensor& self, const Tensor& source)) { self.copy_(source); }
ACLNN(aclnnInplaceZero, (Tensor& self)) { self.zero_(); }
ACLNN(aclnnInplaceOne, (Tensor& self)) { self.fill_(1); }
ACLNN(aclnnInplaceFillScalar, (Tensor& self, const Scalar& value)) { self.fill_(value); }
ACLNN(aclnnInplaceFillTensor, (Tensor& self, const Tensor& value)) { self.copy_(value.reshape({})); }
ACLNN(aclnnComplex, (const Tensor& real, const Tensor& imag, Tensor& out)) { at::complex_out(out, real, imag); }
ACLNN(aclnnPolar, (const Tensor& abs, const Tensor& angle, Tensor& out)) { at::polar_out(out, abs, angle); }

// ---- two inputs -----------------------------------------------------------------------------------------------------
#define BINARY(NAME, OP) \
  ACLNN(aclnn##NAME, (const Tensor& self, const Tensor& other, Tensor& out)) { at::OP##_out(out, self, other); }
#define INPLACE_BINARY(NAME, OP) \
  ACLNN(aclnnInplace##NAME, (Tensor& self, const Tensor& other)) { at::OP##_out(self, self, other); }
#define WITH_SCALAR(NAME, OP)                                                  \
  ACLNN(aclnn##NAME, (const Tensor& self, const Scalar& other, Tensor& out)) { \
    at::OP##_out(out, self, wrapped(other));                                   \
  }
#define INPLACE_WITH_SCALAR(NAME, OP) \
  ACLNN(aclnnInplace##NAME, (Tensor& self, const Scalar& other)) { at::OP##_out(self, self, wrapped(other)); }
// CANN names the two forms in one of two ways: EqTensor and EqScalar, or Mul and Muls.
#define BINARY_TENSOR_SCALAR(NAME, OP) \
  BINARY(NAME##Tensor, OP)             \
  INPLACE_BINARY(NAME##Tensor, OP) WITH_SCALAR(NAME##Scalar, OP) INPLACE_WITH_SCALAR(NAME##Scalar, OP)
#define BINARY_S(NAME, OP) \
  BINARY(NAME, OP) INPLACE_BINARY(NAME, OP) WITH_SCALAR(NAME##s, OP) INPLACE_WITH_SCALAR(NAME##s, OP)

BINARY_TENSOR_SCALAR(BitwiseAnd, bitwise_and)
BINARY(BitwiseOrTensor, bitwise_or)
WITH_SCALAR(BitwiseOrScalar, bitwise_or)
BINARY_TENSOR_SCALAR(BitwiseXor, bitwise_xor)
BINARY_TENSOR_SCALAR(Eq, eq)
BINARY_TENSOR_SCALAR(Fmod, fmod)
BINARY_TENSOR_SCALAR(Ge, ge)
BINARY_TENSOR_SCALAR(Gt, gt)
BINARY_TENSOR_SCALAR(Le, le)
BINARY_TENSOR_SCALAR(Lt, lt)
BINARY_TENSOR_SCALAR(Ne, ne)
WITH_SCALAR(LessScalar, le)  // called for self >= other with a number for self, so it is <=
BINARY_S(Div, div)
BINARY_S(FloorDivide, floor_divide)
BINARY_S(Mul, mul)
BINARY(Atan2, atan2)
INPLACE_BINARY(Atan2, atan2)
BINARY(Gcd, gcd)
BINARY(LeftShift, bitwise_left_shift)
WITH_SCALAR(LeftShifts, bitwise_left_shift)
BINARY(RightShift, bitwise_right_shift)
BINARY(LogAddExp, logaddexp)
BINARY(LogAddExp2, logaddexp2)
BINARY(LogicalAnd, logical_and)
INPLACE_BINARY(LogicalAnd, logical_and)
BINARY(LogicalOr, logical_or)
INPLACE_BINARY(LogicalOr, logical_or)
BINARY(LogicalXor, logical_xor)
BINARY(Maximum, maximum)
BINARY(Minimum, minimum)
BINARY(XLogYTensor, xlogy)
WITH_SCALAR(XLogYScalarOther, xlogy)
INPLACE_WITH_SCALAR(XLogYScalarOther, xlogy)
ACLNN(aclnnXLogYScalarSelf, (const Scalar& self, const Tensor& other, Tensor& out)) {
  at::xlogy_out(out, wrapped(self), other);
}

// self + alpha * other
#define ALPHA(NAME, OP)                                                                                \
  ACLNN(aclnn##NAME, (const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out)) {    \
    at::OP##_out(out, self, other, alpha);                                                             \
  }                                                                                                    \
  ACLNN(aclnn##NAME##s, (const Tensor& self, const Scalar& other, const Scalar& alpha, Tensor& out)) { \
    at::OP##_out(out, self, wrapped(other), alpha);                                                    \
  }                                                                                                    \
  ACLNN(aclnnInplace##NAME, (Tensor& self, const Tensor& other, const Scalar& alpha)) {               \
    at::OP##_out(self, self, other, alpha);                                                            \
  }                                                                                                    \
  ACLNN(aclnnInplace##NAME##s, (Tensor& self, const Scalar& other, const Scalar& alpha)) {            \
    at::OP##_out(self, self, wrapped(other), alpha);                                                   \
  }
ALPHA(Add, add)
ALPHA(Sub, sub)
ACLNN(aclnnAddV3, (const Scalar& self, const Tensor& other, const Scalar& alpha, Tensor& out)) {
  at::add_out(out, wrapped(self), other, alpha);
}
ACLNN(aclnnRsub, (const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out)) {
  at::sub_out(out, other, self, alpha);
}
ACLNN(aclnnRsubs, (const Tensor& self, const Scalar& other, const Scalar& alpha, Tensor& out)) {
  at::sub_out(out, wrapped(other), self, alpha);
}
ACLNN(aclnnAddRelu, (const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out)) {
  at::relu_(at::add_out(out, self, other, alpha));
}
ACLNN(aclnnInplaceAddRelu, (Tensor& self, const Tensor& other, const Scalar& alpha)) {
  at::relu_(at::add_out(self, self, other, alpha));
}

// Division with rounding; CANN's mode is 0: none, 1: trunc, 2: floor.
static std::optional<c10::string_view> rounding(int mode) {
  if (mode == 0) return std::nullopt;
  return mode == 1 ? "trunc" : "floor";
}
ACLNN(aclnnDivMod, (const Tensor& self, const Tensor& other, int mode, Tensor& out)) {
  at::div_out(out, self, other, rounding(mode));
}
ACLNN(aclnnDivMods, (const Tensor& self, const Scalar& other, int mode, Tensor& out)) {
  at::div_out(out, self, wrapped(other), rounding(mode));
}
ACLNN(aclnnInplaceDivMod, (Tensor& self, const Tensor& other, int mode)) {
  at::div_out(self, self, other, rounding(mode));
}
ACLNN(aclnnInplaceDivMods, (Tensor& self, const Scalar& other, int mode)) {
  at::div_out(self, self, wrapped(other), rounding(mode));
}

ACLNN(aclnnPowTensorTensor, (const Tensor& self, const Tensor& exponent, Tensor& out)) {
  at::pow_out(out, self, exponent);
}
ACLNN(aclnnPowTensorScalar, (const Tensor& self, const Scalar& exponent, Tensor& out)) {
  at::pow_out(out, self, exponent);
}
ACLNN(aclnnPowScalarTensor, (const Scalar& self, const Tensor& exponent, Tensor& out)) {
  at::pow_out(out, self, exponent);
}
ACLNN(aclnnInplacePowTensorTensor, (Tensor& self, const Tensor& exponent)) { at::pow_out(self, self, exponent); }
ACLNN(aclnnInplacePowTensorScalar, (Tensor& self, const Scalar& exponent)) { at::pow_out(self, self, exponent); }

BINARY(RemainderTensorTensor, remainder)
INPLACE_BINARY(RemainderTensorTensor, remainder)
WITH_SCALAR(RemainderTensorScalar, remainder)
INPLACE_WITH_SCALAR(RemainderTensorScalar, remainder)
ACLNN(aclnnRemainderScalarTensor, (const Scalar& self, const Tensor& other, Tensor& out)) {
  at::remainder_out(out, wrapped(self), other);
}

ACLNN(aclnnIsClose, (const Tensor& self, const Tensor& other, double rtol, double atol, bool equal_nan, Tensor& out)) {
  out.copy_(at::isclose(self, other, rtol, atol, equal_nan));
}
ACLNN(aclnnEqual, (const Tensor& self, const Tensor& other, Tensor& out)) { out.fill_(at::equal(self, other)); }

// ---- three and more inputs ------------------------------------------------------------------------------------------
ACLNN(aclnnSWhere, (const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out)) {
  at::where_out(out, condition.to(at::kBool), self, other);
}
ACLNN(aclnnInplaceMaskedFillScalar, (Tensor& self, const Tensor& mask, const Scalar& value)) {
  self.masked_fill_(mask.to(at::kBool), value);
}
ACLNN(aclnnInplaceMaskedFillTensor, (Tensor& self, const Tensor& mask, const Tensor& value)) {
  self.masked_fill_(mask.to(at::kBool), value.reshape({}));
}
ACLNN(aclnnLerp, (const Tensor& self, const Tensor& end, const Tensor& weight, Tensor& out)) {
  at::lerp_out(out, self, end, weight);
}
ACLNN(aclnnLerps, (const Tensor& self, const Tensor& end, const Scalar& weight, Tensor& out)) {
  at::lerp_out(out, self, end, weight);
}
ACLNN(aclnnInplaceLerp, (Tensor& self, const Tensor& end, const Tensor& weight)) {
  at::lerp_out(self, self, end, weight);
}
ACLNN(aclnnInplaceLerps, (Tensor& self, const Tensor& end, const Scalar& weight)) {
  at::lerp_out(self, self, end, weight);
}
#define ADDC(NAME, OP)                                                                                               \
  ACLNN(aclnn##NAME, (const Tensor& self, const Tensor& one, const Tensor& two, const Scalar& value, Tensor& out)) { \
    at::OP##_out(out, self, one, two, value);                                                                        \
  }                                                                                                                  \
  ACLNN(aclnnInplace##NAME, (Tensor& self, const Tensor& one, const Tensor& two, const Scalar& value)) {            \
    at::OP##_out(self, self, one, two, value);                                                                       \
  }
ADDC(Addcdiv, addcdiv)
ADDC(Addcmul, addcmul)

ACLNN(aclnnClamp, (const Tensor& self, const MaybeScalar& min, const MaybeScalar& max, Tensor& out)) {
  at::clamp_out(out, self, min, max);
}
ACLNN(aclnnClampMin, (const Tensor& self, const Scalar& min, Tensor& out)) { at::clamp_min_out(out, self, min); }
ACLNN(aclnnClampMax, (const Tensor& self, const Scalar& max, Tensor& out)) { at::clamp_max_out(out, self, max); }
ACLNN(aclnnInplaceClampMax, (Tensor& self, const Scalar& max)) { at::clamp_max_out(self, self, max); }
ACLNN(aclnnClampTensor, (const Tensor& self, const MaybeTensor& min, const MaybeTensor& max, Tensor& out)) {
  at::clamp_out(out, self, min, max);
}
BINARY(ClampMinTensor, clamp_min)
INPLACE_BINARY(ClampMinTensor, clamp_min)
BINARY(ClampMaxTensor, clamp_max)
INPLACE_BINARY(ClampMaxTensor, clamp_max)
