// One operator over a list of tensors, as optimizers use it, and the gradient scaler's.
#include "aclnn.h"

using namespace vnpu;

namespace {
Scalar number(const Tensor& value) { return value.reshape({-1})[0].item(); }

template <class F>
void each(const Tensors& out, F f) {
  for (size_t i = 0; i < out.size(); ++i) {
    Tensor result = out[i];
    f(i, result);
  }
}
}  // namespace

#define FOREACH_UNARY(NAME, OP)                                                  \
  ACLNN(aclnnForeach##NAME, (const Tensors& self, const Tensors& out)) {         \
    each(out, [&](size_t i, Tensor& result) { at::OP##_out(result, self[i]); }); \
  }
FOREACH_UNARY(Abs, abs)
FOREACH_UNARY(Acos, acos)
FOREACH_UNARY(Asin, asin)
FOREACH_UNARY(Atan, atan)
FOREACH_UNARY(Cos, cos)
FOREACH_UNARY(Cosh, cosh)
FOREACH_UNARY(Erf, erf)
FOREACH_UNARY(Erfc, erfc)
FOREACH_UNARY(Exp, exp)
FOREACH_UNARY(Expm1, expm1)
FOREACH_UNARY(Log, log)
FOREACH_UNARY(Log10, log10)
FOREACH_UNARY(Log1p, log1p)
FOREACH_UNARY(Log2, log2)
FOREACH_UNARY(Neg, neg)
FOREACH_UNARY(Reciprocal, reciprocal)
FOREACH_UNARY(Sigmoid, sigmoid)
FOREACH_UNARY(Sign, sign)
FOREACH_UNARY(Sin, sin)
FOREACH_UNARY(Sinh, sinh)
FOREACH_UNARY(Sqrt, sqrt)
FOREACH_UNARY(Tan, tan)
FOREACH_UNARY(Tanh, tanh)

ACLNN(aclnnForeachCopy, (const Tensors& source, const Tensors& out)) {
  each(out, [&](size_t i, Tensor& result) { result.copy_(source[i]); });
}
ACLNN(aclnnForeachZeroInplace, (const Tensors& self)) {
  each(self, [](size_t, Tensor& result) { result.zero_(); });
}

// Each with a second list, with one number, and with a number for each tensor. The forms before V2, with the number in
// a tensor, are for CANN releases without V2.
#define FOREACH_LIST(NAME, OP)                                                                 \
  ACLNN(aclnnForeach##NAME, (const Tensors& self, const Tensors& other, const Tensors& out)) { \
    each(out, [&](size_t i, Tensor& result) { at::OP##_out(result, self[i], other[i]); });     \
  }
#define FOREACH_SCALAR(NAME, STATEMENT)                                                                      \
  ACLNN(aclnnForeach##NAME##ScalarV2, (const Tensors& self, const Scalar& scalar, const Tensors& out)) {     \
    each(out, [&](size_t i, Tensor& result) { STATEMENT; });                                                 \
  }                                                                                                          \
  ACLNN(aclnnForeach##NAME##ScalarList, (const Tensors& self, const Scalars& scalars, const Tensors& out)) { \
    each(out, [&](size_t i, Tensor& result) {                                                                \
      const Scalar& scalar = scalars.at(i);                                                                  \
      STATEMENT;                                                                                             \
    });                                                                                                      \
  }
FOREACH_LIST(DivList, div)
FOREACH_LIST(MaximumList, maximum)
FOREACH_LIST(MinimumList, minimum)
FOREACH_LIST(MulList, mul)
FOREACH_LIST(PowList, pow)
FOREACH_SCALAR(Add, at::add_out(result, self[i], wrapped(scalar)))
FOREACH_SCALAR(Sub, at::sub_out(result, self[i], wrapped(scalar)))
FOREACH_SCALAR(Mul, at::mul_out(result, self[i], wrapped(scalar)))
FOREACH_SCALAR(Div, at::div_out(result, self[i], wrapped(scalar)))
FOREACH_SCALAR(Maximum, at::clamp_min_out(result, self[i], scalar))
FOREACH_SCALAR(Minimum, at::clamp_max_out(result, self[i], scalar))
FOREACH_SCALAR(Pow, at::pow_out(result, self[i], scalar))
ACLNN(aclnnForeachPowScalarAndTensor, (const Scalar& self, const Tensors& exponent, const Tensors& out)) {
  each(out, [&](size_t i, Tensor& result) { at::pow_out(result, self, exponent[i]); });
}

#define FOREACH_ALPHA(NAME, OP)                                                                       \
  ACLNN(aclnnForeach##NAME##ListV2,                                                                   \
        (const Tensors& self, const Tensors& other, const Scalar& alpha, const Tensors& out)) {       \
    each(out, [&](size_t i, Tensor& result) {                                                         \
      at::OP##_out(result, self[i], other[i],                                                         \
                   c10::isIntegralType(result.scalar_type(), true) ? Scalar(alpha.toLong()) : alpha); \
    });                                                                                               \
  }
FOREACH_ALPHA(Add, add)
FOREACH_ALPHA(Sub, sub)

// self + scalar * one (* or /) two; here the list of numbers is a 1-D tensor.
#define FOREACH_ADDC(NAME, OP)                                                                                      \
  ACLNN(aclnnForeach##NAME##ScalarV2,                                                                               \
        (const Tensors& self, const Tensors& one, const Tensors& two, const Scalar& scalar, const Tensors& out)) {  \
    each(out, [&](size_t i, Tensor& result) { at::OP##_out(result, self[i], one[i], two[i], scalar); });            \
  }                                                                                                                 \
  ACLNN(aclnnForeach##NAME##ScalarList,                                                                             \
        (const Tensors& self, const Tensors& one, const Tensors& two, const Tensor& scalars, const Tensors& out)) { \
    each(out, [&](size_t i, Tensor& result) {                                                                       \
      at::OP##_out(result, self[i], one[i], two[i], scalars[static_cast<int64_t>(i)].item());                       \
    });                                                                                                             \
  }
FOREACH_ADDC(Addcdiv, addcdiv)
FOREACH_ADDC(Addcmul, addcmul)

ACLNN(aclnnForeachLerpList, (const Tensors& self, const Tensors& end, const Tensors& weight, const Tensors& out)) {
  each(out, [&](size_t i, Tensor& result) { at::lerp_out(result, self[i], end[i], weight[i]); });
}
ACLNN(aclnnForeachLerpScalar, (const Tensors& self, const Tensors& end, const Scalar& weight, const Tensors& out)) {
  each(out, [&](size_t i, Tensor& result) { at::lerp_out(result, self[i], end[i], weight); });
}
ACLNN(aclnnForeachNorm, (const Tensors& self, const Scalar& order, const Tensors& out)) {
  each(out,
       [&](size_t i, Tensor& result) { result.copy_(at::linalg_vector_norm(self[i], order).reshape(result.sizes())); });
}

// CANN's rounding modes, as op-plugin's ForeachRoundOffNumber numbers them.
ACLNN(aclnnForeachRoundOffNumberV2, (const Tensors& self, const Scalar& mode, const Tensors& out)) {
  each(out, [&](size_t i, Tensor& result) {
    switch (mode.toLong()) {
      case 1:
        at::round_out(result, self[i]);
        break;
      case 2:
        at::floor_out(result, self[i]);
        break;
      case 3:
        at::ceil_out(result, self[i]);
        break;
      case 5:
        at::trunc_out(result, self[i]);
        break;
      case 7:
        at::frac_out(result, self[i]);
        break;
      default:
        TORCH_CHECK(false, "rounding mode ", mode.toLong(), " is not emulated");
    }
  });
}

// ---- gradient scaling -----------------------------------------------------------------------------------------------
ACLNN(aclnnForeachNonFiniteCheckAndUnscale, (const Tensors& grads, Tensor& found_inf, const Tensor& inv_scale)) {
  each(grads, [&](size_t, Tensor& grad) {
    if (!at::isfinite(grad).all().item<bool>()) found_inf.fill_(1);
    grad.mul_(number(inv_scale));
  });
}
ACLNN(aclnnAmpUpdateScale, (const Tensor&, const Tensor&, const Tensor& found_inf, double growth, double backoff,
                            int64_t interval, Tensor& scale, Tensor& tracker)) {
  if (number(found_inf).toDouble() != 0) {
    scale.mul_(backoff);
    tracker.zero_();
  } else if (number(tracker).toLong() + 1 == interval) {
    const Tensor grown = scale * growth;
    if (at::isfinite(grown).all().item<bool>()) scale.copy_(grown);
    tracker.zero_();
  } else {
    tracker.add_(1);
  }
}

// torch.optim.AdamW(fused=True); `step` counts from 0.
ACLNN(aclnnApplyAdamWV2, (Tensor& param, Tensor& exp_avg, Tensor& exp_avg_sq, const MaybeTensor& max_exp_avg_sq,
                          const Tensor& gradient, const Tensor& step, float lr, float beta1, float beta2,
                          float weight_decay, float eps, bool amsgrad, bool maximize)) {
  const Tensor grad = maximize ? -gradient : gradient;
  const double t = number(step).toDouble() + 1;
  param.mul_(1 - lr * weight_decay);
  exp_avg.lerp_(grad, 1 - beta1);
  exp_avg_sq.mul_(beta2).addcmul_(grad, grad, 1 - beta2);
  Tensor second = exp_avg_sq;
  if (amsgrad) {
    second = *max_exp_avg_sq;
    at::maximum_out(second, second, exp_avg_sq);
  }
  const Tensor denominator = (second / (1 - std::pow(beta2, t))).sqrt_().add_(eps);
  param.addcdiv_(exp_avg, denominator, -lr / (1 - std::pow(beta1, t)));
}
