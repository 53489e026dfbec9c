// Neural network operators: activations, softmax, normalisation, losses.
#include "aclnn.h"

using namespace vnpu;

// ---- softmax --------------------------------------------------------------------------------------------------------
// The output's dtype is the one asked for: a float32 output of a half input is PyTorch's half_to_float.
ACLNN(aclnnSoftmax, (const Tensor& self, int64_t dim, Tensor& out)) {
  at::_softmax_out(out, self.to(out.scalar_type()), dim, false);
}
ACLNN(aclnnLogSoftmax, (const Tensor& self, int64_t dim, Tensor& out)) {
  at::_log_softmax_out(out, self.to(out.scalar_type()), dim, false);
}
ACLNN(aclnnSoftmaxBackward, (const Tensor& grad, const Tensor& output, int64_t dim, Tensor& out)) {
  if (out.scalar_type() == output.scalar_type() && grad.scalar_type() == output.scalar_type())
    at::_softmax_backward_data_out(out, grad, output, dim, out.scalar_type());
  else
    out.copy_(at::_softmax_backward_data(grad.to(output.scalar_type()), output, dim, output.scalar_type()));
}
ACLNN(aclnnLogSoftmaxBackward, (const Tensor& grad, const Tensor& output, int64_t dim, Tensor& out)) {
  if (out.scalar_type() == output.scalar_type() && grad.scalar_type() == output.scalar_type())
    at::_log_softmax_backward_data_out(out, grad, output, dim, out.scalar_type());
  else
    out.copy_(at::_log_softmax_backward_data(grad.to(output.scalar_type()), output, dim, output.scalar_type()));
}
ACLNN(aclnnScaledMaskedSoftmax, (const Tensor& self, const Tensor& mask, double scale, bool triu, Tensor& out)) {
  const Tensor hidden = triu ? at::ones_like(self, at::kBool).triu_(1) : mask.to(at::kBool);
  out.copy_(at::softmax(self.to(at::kFloat).mul(scale).masked_fill(hidden, -10000.0), -1));
}
ACLNN(aclnnScaledMaskedSoftmaxBackward,
      (const Tensor& grad, const Tensor& output, const Tensor& mask, double scale, bool triu, Tensor& out)) {
  const Tensor hidden = triu ? at::ones_like(output, at::kBool).triu_(1) : mask.to(at::kBool);
  const Tensor y = output.to(at::kFloat);
  out.copy_(at::_softmax_backward_data(grad.to(at::kFloat), y, -1, at::kFloat).mul(scale).masked_fill(hidden, 0));
}

// ---- activations ----------------------------------------------------------------------------------------------------
ACLNN(aclnnGelu, (const Tensor& self, Tensor& out)) { at::gelu_out(out, self); }
ACLNN(aclnnGeluV2, (const Tensor& self, int64_t approximate, Tensor& out)) {
  at::gelu_out(out, self, approximate ? "tanh" : "none");
}
ACLNN(aclnnGeluBackward, (const Tensor& grad, const Tensor& self, Tensor& out)) {
  at::gelu_backward_out(out, grad, self);
}
ACLNN(aclnnGeluBackwardV2, (const Tensor& grad, const Tensor& self, const char* approximate, Tensor& out)) {
  at::gelu_backward_out(out, grad, self, approximate);
}
ACLNN(aclnnFastGelu, (const Tensor& self, Tensor& out)) { out.copy_(self * at::sigmoid(self * 1.702)); }
ACLNN(aclnnFastGeluBackward, (const Tensor& grad, const Tensor& self, Tensor& out)) {
  const Tensor gate = at::sigmoid(self * 1.702);
  out.copy_(grad * (gate + self * 1.702 * gate * (1 - gate)));
}
#define BACKWARD(NAME, OP) \
  ACLNN(aclnn##NAME, (const Tensor& grad, const Tensor& self, Tensor& out)) { at::OP##_out(out, grad, self); }
BACKWARD(HardsigmoidBackward, hardsigmoid_backward)
BACKWARD(HardswishBackward, hardswish_backward)
BACKWARD(SigmoidBackward, sigmoid_backward)
BACKWARD(SiluBackward, silu_backward)
BACKWARD(TanhBackward, tanh_backward)
ACLNN(aclnnMishBackward, (const Tensor& grad, const Tensor& self, Tensor& out)) {
  out.copy_(at::mish_backward(grad, self));
}
ACLNN(aclnnElu,
      (const Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale, Tensor& out)) {
  at::elu_out(out, self, alpha, scale, input_scale);
}
ACLNN(aclnnInplaceElu, (Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale)) {
  at::elu_(self, alpha, scale, input_scale);
}
ACLNN(aclnnEluBackward, (const Tensor& grad, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale,
                         bool is_result, const Tensor& self, Tensor& out)) {
  at::elu_backward_out(out, grad, alpha, scale, input_scale, is_result, self);
}
ACLNN(aclnnCelu, (const Tensor& self, const Scalar& alpha, Tensor& out)) { out.copy_(at::celu(self, alpha)); }
ACLNN(aclnnInplaceCelu, (Tensor& self, const Scalar& alpha)) { at::celu_(self, alpha); }
ACLNN(aclnnLeakyRelu, (const Tensor& self, const Scalar& slope, Tensor& out)) { at::leaky_relu_out(out, self, slope); }
ACLNN(aclnnInplaceLeakyRelu, (Tensor& self, const Scalar& slope)) { at::leaky_relu_(self, slope); }
ACLNN(aclnnLeakyReluBackward,
      (const Tensor& grad, const Tensor& self, const Scalar& slope, bool is_result, Tensor& out)) {
  at::leaky_relu_backward_out(out, grad, self, slope, is_result);
}
ACLNN(aclnnHardtanh, (const Tensor& self, const Scalar& min, const Scalar& max, Tensor& out)) {
  at::hardtanh_out(out, self, min, max);
}
ACLNN(aclnnInplaceHardtanh, (Tensor& self, const Scalar& min, const Scalar& max)) { at::hardtanh_(self, min, max); }
ACLNN(aclnnHardtanhBackward,
      (const Tensor& grad, const Tensor& self, const Scalar& min, const Scalar& max, Tensor& out)) {
  at::hardtanh_backward_out(out, grad, self, min, max);
}
ACLNN(aclnnHardshrink, (const Tensor& self, const Scalar& lambd, Tensor& out)) { at::hardshrink_out(out, self, lambd); }
ACLNN(aclnnHardshrinkBackward, (const Tensor& grad, const Tensor& self, const Scalar& lambd, Tensor& out)) {
  at::hardshrink_backward_out(out, grad, self, lambd);
}
ACLNN(aclnnSoftshrink, (const Tensor& self, const Scalar& lambd, Tensor& out)) { at::softshrink_out(out, self, lambd); }
ACLNN(aclnnSoftshrinkBackward, (const Tensor& grad, const Tensor& self, const Scalar& lambd, Tensor& out)) {
  at::softshrink_backward_out(out, grad, self, lambd);
}
ACLNN(aclnnSoftplus, (const Tensor& self, const Scalar& beta, const Scalar& threshold, Tensor& out)) {
  at::softplus_out(out, self, beta, threshold);
}
ACLNN(aclnnSoftplusBackward,
      (const Tensor& grad, const Tensor& self, const Scalar& beta, const Scalar& threshold, Tensor& out)) {
  at::softplus_backward_out(out, grad, self, beta, threshold);
}
ACLNN(aclnnThreshold, (const Tensor& self, const Scalar& threshold, const Scalar& value, Tensor& out)) {
  at::threshold_out(out, self, threshold, value);
}
ACLNN(aclnnInplaceThreshold, (Tensor& self, const Scalar& threshold, const Scalar& value)) {
  at::threshold_(self, threshold, value);
}
ACLNN(aclnnThresholdBackward, (const Tensor& grad, const Tensor& self, const Scalar& threshold, Tensor& out)) {
  at::threshold_backward_out(out, grad, self, threshold);
}
ACLNN(aclnnPrelu, (const Tensor& self, const Tensor& weight, Tensor& out)) {
  out.copy_(at::_prelu_kernel(self, weight));
}
ACLNN(aclnnPreluBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& weight, Tensor& grad_input, Tensor& grad_weight)) {
  // One weight for all, or one for each channel, the second axis.
  const bool shared = weight.numel() == 1;
  Ints shape(self.dim(), 1), axes;
  for (int64_t axis = 0; axis < self.dim(); ++axis)
    if (shared || axis != 1) axes.push_back(axis);
  if (!shared) shape.at(1) = weight.numel();
  const auto [dx, dw] = at::_prelu_kernel_backward(grad, self, weight.reshape(shape));
  grad_input.copy_(dx);
  put(grad_weight, axes.empty() ? dw : at::sum(dw.expand_as(self), axes));
}
ACLNN(aclnnLogSigmoidForward, (const Tensor& self, Tensor& out, Tensor& buffer)) {
  const auto [result, saved] = at::log_sigmoid_forward(self);
  put(out, result);
  put(MaybeTensor(buffer), saved);
}
ACLNN(aclnnLogSigmoidBackward, (const Tensor& grad, const Tensor& self, const Tensor&, Tensor& out)) {
  out.copy_(grad * at::sigmoid(-self));  // an NPU keeps nothing in the buffer
}
ACLNN(aclnnLogit, (const Tensor& self, double eps, Tensor& out)) {
  at::logit_out(out, self, eps < 0 ? std::nullopt : std::make_optional(eps));
}
ACLNN(aclnnLogitGrad, (const Tensor& self, const Tensor& grad, double eps, Tensor& out)) {
  at::logit_backward_out(out, grad, self, eps < 0 ? std::nullopt : std::make_optional(eps));
}
ACLNN(aclnnGlu, (const Tensor& self, int64_t dim, Tensor& out)) { at::glu_out(out, self, dim); }
ACLNN(aclnnGluBackward, (const Tensor& grad, const Tensor& self, int64_t dim, Tensor& out)) {
  at::glu_backward_out(out, grad, self, dim);
}
ACLNN(aclnnSwiGlu, (const Tensor& self, int64_t dim, Tensor& out)) {
  const auto half = self.chunk(2, dim);
  out.copy_(at::silu(half[0]) * half[1]);
}
ACLNN(aclnnSwiGluGrad, (const Tensor& grad, const Tensor& self, int64_t dim, Tensor& out)) {
  const auto half = self.chunk(2, dim);
  at::cat_out(out, {at::silu_backward(grad * half[1], half[0]), grad * at::silu(half[0])}, dim);
}
ACLNN(aclnnGeluMul, (const Tensor& self, const char* approximate, Tensor& out)) {
  const auto half = self.chunk(2, -1);
  out.copy_(at::gelu(half[0], approximate) * half[1]);
}

// ---- normalisation --------------------------------------------------------------------------------------------------
ACLNN(aclnnLayerNorm, (const Tensor& self, const Ints& shape, const MaybeTensor& weight, const MaybeTensor& bias,
                       double eps, Tensor& out, const MaybeTensor& mean, const MaybeTensor& rstd)) {
  const auto [result, average, inverse] = at::native_layer_norm(self, shape, weight, bias, eps);
  put(out, result);
  put(mean, average);
  put(rstd, inverse);
}
ACLNN(aclnnFastLayerNorm, (const Tensor& self, const Ints& shape, const MaybeTensor& weight, const MaybeTensor& bias,
                           double eps, Tensor& out, const MaybeTensor& mean, const MaybeTensor& rstd)) {
  const auto [result, average, inverse] = at::native_layer_norm(self, shape, weight, bias, eps);
  put(out, result);
  put(mean, average);
  put(rstd, inverse);
}
ACLNN(aclnnLayerNormBackward,
      (const Tensor& grad, const Tensor& self, const Ints& shape, const Tensor& mean, const Tensor& rstd,
       const MaybeTensor& weight, const MaybeTensor& bias, std::array<bool, 3> mask, const MaybeTensor& grad_input,
       const MaybeTensor& grad_weight, const MaybeTensor& grad_bias)) {
  // In half precision, mean and rstd are float32: ATen wants one dtype, so the whole is computed in float32.
  const auto type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto cast = [&](const MaybeTensor& tensor) { return tensor ? MaybeTensor(tensor->to(type)) : std::nullopt; };
  const auto [dx, dw, db] = at::native_layer_norm_backward(grad.to(type), self.to(type), shape, mean.to(type),
                                                           rstd.to(type), cast(weight), cast(bias), mask);
  put(grad_input, dx);
  put(grad_weight, dw);
  put(grad_bias, db);
}

namespace {
// x / sqrt(mean(x²) + eps) over the axes of gamma, in float32 like the NPU's kernels.
void rms_norm(const Tensor& self, const Tensor& gamma, double eps, double offset, Tensor& out, Tensor& rstd) {
  Ints axes;
  for (int64_t axis = self.dim() - gamma.dim(); axis < self.dim(); ++axis) axes.push_back(axis);
  const auto type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor x = self.to(type);
  const Tensor inverse = at::rsqrt(at::mean(x * x, axes, true) + eps);
  put(rstd, inverse);
  out.copy_(x * inverse * (gamma.to(type) + offset));
}
}  // namespace
ACLNN(aclnnRmsNorm, (const Tensor& self, const Tensor& gamma, double eps, Tensor& out, Tensor& rstd)) {
  rms_norm(self, gamma, eps, 0, out, rstd);
}
ACLNN(aclnnGemmaRmsNorm, (const Tensor& self, const Tensor& gamma, double eps, Tensor& out, Tensor& rstd)) {
  rms_norm(self, gamma, eps, 1, out, rstd);
}
ACLNN(aclnnAddRmsNorm,
      (const Tensor& one, const Tensor& two, const Tensor& gamma, double eps, Tensor& out, Tensor& rstd, Tensor& sum)) {
  at::add_out(sum, one, two);
  rms_norm(sum, gamma, eps, 0, out, rstd);
}
ACLNN(aclnnRmsNormGrad,
      (const Tensor& grad, const Tensor& self, const Tensor& rstd, const Tensor& gamma, Tensor& dx, Tensor& dgamma)) {
  Ints axes, rows;
  for (int64_t axis = 0; axis < self.dim(); ++axis) (axis < self.dim() - gamma.dim() ? rows : axes).push_back(axis);
  const auto type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor x_hat = self.to(type) * rstd.to(type), dy = grad.to(type);
  const Tensor scaled = dy * gamma.to(type);
  dx.copy_((scaled - x_hat * at::mean(scaled * x_hat, axes, true)) * rstd.to(type));
  dgamma.copy_(rows.empty() ? dy * x_hat : at::sum(dy * x_hat, rows));
}
ACLNN(aclnnGroupNorm, (const Tensor& self, const MaybeTensor& weight, const MaybeTensor& bias, int64_t n, int64_t c,
                       int64_t hw, int64_t group, double eps, Tensor& out, Tensor& mean, Tensor& rstd)) {
  const auto [result, average, inverse] = at::native_group_norm(self.contiguous(), weight, bias, n, c, hw, group, eps);
  put(out, result);
  put(mean, average);
  put(rstd, inverse);
}
ACLNN(aclnnGroupNormBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& mean, const Tensor& rstd, const MaybeTensor& gamma,
       int64_t n, int64_t c, int64_t hw, int64_t group, std::array<bool, 3> mask, const MaybeTensor& grad_input,
       const MaybeTensor& grad_gamma, const MaybeTensor& grad_beta)) {
  const auto [dx, dw, db] = at::native_group_norm_backward(grad.contiguous(), self.contiguous(), mean.contiguous(),
                                                           rstd.contiguous(), gamma, n, c, hw, group, mask);
  put(grad_input, dx);
  put(grad_gamma, dw);
  put(grad_beta, db);
}
ACLNN(aclnnBatchNorm, (const Tensor& self, const MaybeTensor& weight, const MaybeTensor& bias,
                       const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training, double momentum,
                       double eps, Tensor& out, Tensor& mean, Tensor& rstd)) {
  const auto [result, average, inverse] =
      at::native_batch_norm(self, weight, bias, running_mean, running_var, training, momentum, eps);
  put(out, result);
  if (training) {
    put(MaybeTensor(mean), average);
    put(MaybeTensor(rstd), inverse);
  }
}
ACLNN(aclnnBatchNormBackward,
      (const Tensor& grad, const Tensor& self, const MaybeTensor& weight, const MaybeTensor& running_mean,
       const MaybeTensor& running_var, const MaybeTensor& mean, const MaybeTensor& rstd, bool training, double eps,
       std::array<bool, 3> mask, const MaybeTensor& grad_input, const MaybeTensor& grad_weight,
       const MaybeTensor& grad_bias)) {
  const auto [dx, dw, db] =
      at::native_batch_norm_backward(grad, self, weight, running_mean, running_var, mean, rstd, training, eps, mask);
  put(grad_input, dx);
  put(grad_weight, dw);
  put(grad_bias, db);
}

// ---- losses ---------------------------------------------------------------------------------------------------------
#define LOSS(NAME, OP)                                                                             \
  ACLNN(aclnn##NAME, (const Tensor& self, const Tensor& target, int64_t reduction, Tensor& out)) { \
    put(out, at::OP(self, target, reduction));                                                     \
  }
LOSS(L1Loss, l1_loss)
LOSS(MseLoss, mse_loss)
LOSS(SoftMarginLoss, soft_margin_loss)
ACLNN(aclnnMseLossBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction, Tensor& out)) {
  put(out, at::mse_loss_backward(grad, self, target, reduction));
}
ACLNN(aclnnL1LossBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction, Tensor& out)) {
  const Tensor sign = at::sign(self - target);
  put(out, reduction == at::Reduction::Mean ? sign * grad / sign.numel() : sign * grad);
}
ACLNN(aclnnSoftMarginLossBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction, Tensor& out)) {
  put(out, at::soft_margin_loss_backward(grad, self, target, reduction));
}
ACLNN(aclnnSmoothL1Loss, (const Tensor& self, const Tensor& target, int64_t reduction, float beta, Tensor& out)) {
  put(out, at::smooth_l1_loss(self, target, reduction, beta));
}
ACLNN(aclnnSmoothL1LossBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction, float beta, Tensor& out)) {
  put(out, at::smooth_l1_loss_backward(grad, self, target, reduction, beta));
}
ACLNN(aclnnKlDiv, (const Tensor& self, const Tensor& target, int64_t reduction, bool log_target, Tensor& out)) {
  put(out, at::kl_div(self, target, reduction, log_target));
}
ACLNN(aclnnKlDivBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction, bool log_target, Tensor& out)) {
  const Tensor slope = log_target ? -at::exp(target) : -target;
  put(out, (reduction == at::Reduction::Mean ? slope / slope.numel() : slope) * grad);
}
ACLNN(aclnnBinaryCrossEntropy,
      (const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction, Tensor& out)) {
  put(out, at::binary_cross_entropy(self, target, weight, reduction));
}
ACLNN(aclnnBinaryCrossEntropyBackward, (const Tensor& grad, const Tensor& self, const Tensor& target,
                                        const MaybeTensor& weight, int64_t reduction, Tensor& out)) {
  put(out, at::binary_cross_entropy_backward(grad, self, target, weight, reduction));
}
ACLNN(aclnnBinaryCrossEntropyWithLogits, (const Tensor& self, const Tensor& target, const MaybeTensor& weight,
                                          const MaybeTensor& pos_weight, int64_t reduction, Tensor& out)) {
  put(out, at::binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction));
}
ACLNN(aclnnBinaryCrossEntropyWithLogitsBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& target, const MaybeTensor& weight,
       const MaybeTensor& pos_weight, int64_t reduction, Tensor& out)) {
  const Tensor p = at::sigmoid(self);
  Tensor slope = pos_weight ? ((*pos_weight * target + 1 - target) * p - *pos_weight * target) : p - target;
  if (weight) slope = slope * *weight;
  slope = slope * grad;
  put(out, reduction == at::Reduction::Mean ? slope / self.numel() : slope);
}
// The class weights come always; torch_npu makes ones where the user gave none.
ACLNN(aclnnNLLLoss, (const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                     int64_t ignore_index, Tensor& out, Tensor& total_weight)) {
  const auto [loss, total] = at::nll_loss_forward(self, target.to(at::kLong), weight, reduction, ignore_index);
  put(out, loss);
  put(total_weight, total);
}
ACLNN(aclnnNLLLossBackward, (const Tensor& grad, const Tensor& self, const Tensor& target, const MaybeTensor& weight,
                             int64_t reduction, int64_t ignore_index, const Tensor& total_weight, Tensor& out)) {
  put(out, at::nll_loss_backward(grad, self, target.to(at::kLong), weight, reduction, ignore_index,
                                 total_weight.to(self.scalar_type())));
}
ACLNN(aclnnNLLLoss2d, (const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                       int64_t ignore_index, Tensor& out, Tensor& total_weight)) {
  const auto [loss, total] = at::nll_loss2d_forward(self, target.to(at::kLong), weight, reduction, ignore_index);
  put(out, loss);
  put(total_weight, total);
}
ACLNN(aclnnNLLLoss2dBackward, (const Tensor& grad, const Tensor& self, const Tensor& target, const MaybeTensor& weight,
                               int64_t reduction, int64_t ignore_index, const Tensor& total_weight, Tensor& out)) {
  put(out, at::nll_loss2d_backward(grad, self, target.to(at::kLong), weight, reduction, ignore_index,
                                   total_weight.to(self.scalar_type())));
}
