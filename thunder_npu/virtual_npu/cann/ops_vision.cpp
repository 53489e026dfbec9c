// Convolution, pooling, resampling.
#include "aclnn.h"

using namespace vnpu;

namespace {
std::optional<int64_t> divisor(int64_t value) { return value ? std::make_optional(value) : std::nullopt; }
// torch_npu passes 0 or -1 for "no scale given, derive it from the sizes".
std::optional<double> scale(double value) { return value > 0 ? std::make_optional(value) : std::nullopt; }
}  // namespace

// ---- convolution ----------------------------------------------------------------------------------------------------
ACLNN(aclnnConvolution,
      (const Tensor& self, const Tensor& weight, const MaybeTensor& bias, const Ints& stride, const Ints& padding,
       const Ints& dilation, bool transposed, const Ints& output_padding, int64_t groups, Tensor& out, int8_t)) {
  put(out, at::convolution(self, weight, bias, stride, padding, dilation, transposed, output_padding, groups));
}
ACLNN(aclnnConvolutionBackward,
      (const Tensor& grad, const Tensor& self, const Tensor& weight, const MaybeInts& bias_sizes, const Ints& stride,
       const Ints& padding, const Ints& dilation, bool transposed, const Ints& output_padding, int64_t groups,
       std::array<bool, 3> mask, int8_t, const MaybeTensor& grad_input, const MaybeTensor& grad_weight,
       const MaybeTensor& grad_bias)) {
  const auto sizes = bias_sizes ? at::OptionalIntArrayRef(*bias_sizes) : at::OptionalIntArrayRef();
  const auto [dx, dw, db] = at::convolution_backward(grad, self, weight, sizes, stride, padding, dilation, transposed,
                                                     output_padding, groups, mask);
  put(grad_input, dx);
  put(grad_weight, dw);
  put(grad_bias, db);
}
ACLNN(aclnnIm2col, (const Tensor& self, const Ints& kernel, const Ints& dilation, const Ints& padding,
                    const Ints& stride, Tensor& out)) {
  put(out, at::im2col(self, kernel, dilation, padding, stride));
}
ACLNN(aclnnIm2colBackward, (const Tensor& grad, const Ints& size, const Ints& kernel, const Ints& dilation,
                            const Ints& padding, const Ints& stride, Tensor& out)) {
  put(out, at::col2im(grad, size, kernel, dilation, padding, stride));
}

// ---- pooling --------------------------------------------------------------------------------------------------------
#define AVG_POOL(D, ...)                                                                                              \
  ACLNN(aclnnAvgPool##D##d, (const Tensor& self, const Ints& kernel, const Ints& stride, const Ints& padding,         \
                             bool ceil, bool include_pad, int64_t override __VA_ARGS__, Tensor& out)) {               \
    put(out, at::avg_pool##D##d(self, kernel, stride, padding, ceil, include_pad, divisor(override)));                \
  }                                                                                                                   \
  ACLNN(aclnnAvgPool##D##dBackward,                                                                                   \
        (const Tensor& grad, const Tensor& self, const Ints& kernel, const Ints& stride, const Ints& padding,         \
         bool ceil, bool include_pad, int64_t override __VA_ARGS__, Tensor& out)) {                                   \
    put(out, at::avg_pool##D##d_backward(grad, self, kernel, stride, padding, ceil, include_pad, divisor(override))); \
  }
#define CUBE_MATH_TYPE , int8_t
AVG_POOL(2, CUBE_MATH_TYPE)
AVG_POOL(3)

// The gradient finds the maxima again from the input: the mask that CANN keeps in place of indices is its own affair.
#define MAX_POOL(NAME, OP)                                                                              \
  ACLNN(aclnn##NAME, (const Tensor& self, const Ints& kernel, const Ints& stride, const Ints& padding,  \
                      const Ints& dilation, bool ceil, Tensor& out, Tensor& indices)) {                 \
    const auto [result, index] = at::OP(self, kernel, stride, padding, dilation, ceil);                 \
    put(out, result);                                                                                   \
    if (indices.sizes() == index.sizes()) indices.copy_(index);                                         \
  }                                                                                                     \
  ACLNN(aclnn##NAME##Backward,                                                                          \
        (const Tensor& grad, const Tensor& self, const Tensor&, const Ints& kernel, const Ints& stride, \
         const Ints& padding, const Ints& dilation, bool ceil, Tensor& out)) {                          \
    const Tensor index = std::get<1>(at::OP(self, kernel, stride, padding, dilation, ceil));            \
    put(out, at::OP##_backward(grad, self, kernel, stride, padding, dilation, ceil, index));            \
  }
MAX_POOL(MaxPool2dWithIndices, max_pool2d_with_indices)
MAX_POOL(MaxPool2dWithMask, max_pool2d_with_indices)
MAX_POOL(MaxPool3dWithArgmax, max_pool3d_with_indices)

ACLNN(aclnnAdaptiveAvgPool2d, (const Tensor& self, const Ints& size, Tensor& out)) {
  put(out, at::_adaptive_avg_pool2d(self, size));
}
ACLNN(aclnnAdaptiveAvgPool2dBackward, (const Tensor& grad, const Tensor& self, Tensor& out)) {
  put(out, at::_adaptive_avg_pool2d_backward(grad, self));
}
ACLNN(aclnnAdaptiveAvgPool3d, (const Tensor& self, const Ints& size, Tensor& out)) {
  put(out, at::_adaptive_avg_pool3d(self, size));
}
ACLNN(aclnnAdaptiveAvgPool3dBackward, (const Tensor& grad, const Tensor& self, Tensor& out)) {
  put(out, at::_adaptive_avg_pool3d_backward(grad, self));
}
ACLNN(aclnnAdaptiveMaxPool2d, (const Tensor& self, const Ints& size, Tensor& out, Tensor& indices)) {
  const auto [result, index] = at::adaptive_max_pool2d(self, size);
  put(out, result);
  put(indices, index);
}
ACLNN(aclnnAdaptiveMaxPool2dBackward, (const Tensor& grad, const Tensor& self, const Tensor& indices, Tensor& out)) {
  put(out, at::adaptive_max_pool2d_backward(grad, self, indices.to(at::kLong)));
}
ACLNN(aclnnAdaptiveMaxPool3d, (const Tensor& self, const Ints& size, Tensor& out, Tensor& indices)) {
  const auto [result, index] = at::adaptive_max_pool3d(self, size);
  put(out, result);
  put(indices, index);
}
ACLNN(aclnnAdaptiveMaxPool3dBackward, (const Tensor& grad, const Tensor& self, const Tensor& indices, Tensor& out)) {
  put(out, at::adaptive_max_pool3d_backward(grad, self, indices.to(at::kLong)));
}
ACLNN(aclnnMaxUnpool2d, (const Tensor& self, const Tensor& indices, const Ints& size, Tensor& out)) {
  put(out, at::max_unpool2d(self, indices.to(at::kLong), size));
}

// ---- resampling -----------------------------------------------------------------------------------------------------
ACLNN(aclnnUpsampleNearest1dV2, (const Tensor& self, const Ints& size, float s, Tensor& out)) {
  put(out, at::upsample_nearest1d(self, size, scale(s)));
}
ACLNN(aclnnUpsampleNearest2dV2, (const Tensor& self, const Ints& size, float h, float w, Tensor& out)) {
  put(out, at::upsample_nearest2d(self, size, scale(h), scale(w)));
}
ACLNN(aclnnUpsampleNearestExact1d, (const Tensor& self, const Ints& size, double s, Tensor& out)) {
  put(out, at::_upsample_nearest_exact1d(self, size, scale(s)));
}
ACLNN(aclnnUpsampleNearestExact2d, (const Tensor& self, const Ints& size, double h, double w, Tensor& out)) {
  put(out, at::_upsample_nearest_exact2d(self, size, scale(h), scale(w)));
}
ACLNN(aclnnUpsampleNearest3d, (const Tensor& self, const Ints& size, double d, double h, double w, Tensor& out)) {
  put(out, at::upsample_nearest3d(self, size, scale(d), scale(h), scale(w)));
}
ACLNN(aclnnUpsampleNearestExact3d, (const Tensor& self, const Ints& size, double d, double h, double w, Tensor& out)) {
  put(out, at::_upsample_nearest_exact3d(self, size, scale(d), scale(h), scale(w)));
}
#define UPSAMPLE_1D_BACKWARD(NAME, OP)                                                                   \
  ACLNN(aclnn##NAME, (const Tensor& grad, const Ints& size, const Ints& input, double s, Tensor& out)) { \
    put(out, at::OP(grad, size, input, scale(s)));                                                       \
  }
#define UPSAMPLE_2D_BACKWARD(NAME, OP)                                                                             \
  ACLNN(aclnn##NAME, (const Tensor& grad, const Ints& size, const Ints& input, double h, double w, Tensor& out)) { \
    put(out, at::OP(grad, size, input, scale(h), scale(w)));                                                       \
  }
#define UPSAMPLE_3D_BACKWARD(NAME, OP)                                                                          \
  ACLNN(aclnn##NAME,                                                                                            \
        (const Tensor& grad, const Ints& size, const Ints& input, double d, double h, double w, Tensor& out)) { \
    put(out, at::OP(grad, size, input, scale(d), scale(h), scale(w)));                                          \
  }
UPSAMPLE_1D_BACKWARD(UpsampleNearest1dBackward, upsample_nearest1d_backward)
UPSAMPLE_1D_BACKWARD(UpsampleNearestExact1dBackward, _upsample_nearest_exact1d_backward)
UPSAMPLE_2D_BACKWARD(UpsampleNearest2dBackward, upsample_nearest2d_backward)
UPSAMPLE_2D_BACKWARD(UpsampleNearestExact2dBackward, _upsample_nearest_exact2d_backward)
UPSAMPLE_3D_BACKWARD(UpsampleNearest3dBackward, upsample_nearest3d_backward)
UPSAMPLE_3D_BACKWARD(UpsampleNearestExact3dBackward, _upsample_nearest_exact3d_backward)

ACLNN(aclnnUpsampleLinear1d, (const Tensor& self, const Ints& size, bool align, double s, Tensor& out)) {
  put(out, at::upsample_linear1d(self, size, align, scale(s)));
}
ACLNN(aclnnUpsampleLinear1dBackward,
      (const Tensor& grad, const Ints& size, const Ints& input, bool align, double s, Tensor& out)) {
  put(out, at::upsample_linear1d_backward(grad, size, input, align, scale(s)));
}
ACLNN(aclnnUpsampleTrilinear3d,
      (const Tensor& self, const Ints& size, bool align, double d, double h, double w, Tensor& out)) {
  put(out, at::upsample_trilinear3d(self, size, align, scale(d), scale(h), scale(w)));
}
ACLNN(aclnnUpsampleTrilinear3dBackward, (const Tensor& grad, const Ints& size, const Ints& input, bool align, double d,
                                         double h, double w, Tensor& out)) {
  put(out, at::upsample_trilinear3d_backward(grad, size, input, align, scale(d), scale(h), scale(w)));
}
#define UPSAMPLE_2D(NAME, OP)                                                                               \
  ACLNN(aclnn##NAME, (const Tensor& self, const Ints& size, bool align, double h, double w, Tensor& out)) { \
    put(out, at::OP(self, size, align, scale(h), scale(w)));                                                \
  }
#define UPSAMPLE_2D_ALIGNED_BACKWARD(NAME, OP)                                                                    \
  ACLNN(aclnn##NAME,                                                                                              \
        (const Tensor& grad, const Ints& size, const Ints& input, bool align, double h, double w, Tensor& out)) { \
    put(out, at::OP(grad, size, input, align, scale(h), scale(w)));                                               \
  }
UPSAMPLE_2D(UpsampleBilinear2d, upsample_bilinear2d)
UPSAMPLE_2D(UpsampleBicubic2d, upsample_bicubic2d)
UPSAMPLE_2D(UpsampleBilinear2dAA, _upsample_bilinear2d_aa)
UPSAMPLE_2D(UpsampleBicubic2dAA, _upsample_bicubic2d_aa)
UPSAMPLE_2D_ALIGNED_BACKWARD(UpsampleBilinear2dBackwardV2, upsample_bilinear2d_backward)
UPSAMPLE_2D_ALIGNED_BACKWARD(UpsampleBicubic2dBackward, upsample_bicubic2d_backward)
UPSAMPLE_2D_ALIGNED_BACKWARD(UpsampleBilinear2dAABackward, _upsample_bilinear2d_aa_backward)
UPSAMPLE_2D_ALIGNED_BACKWARD(UpsampleBicubic2dAAGrad, _upsample_bicubic2d_aa_backward)

#define GRID_SAMPLER(N)                                                                                         \
  ACLNN(aclnnGridSampler##N##D,                                                                                 \
        (const Tensor& self, const Tensor& grid, int64_t mode, int64_t padding, bool align, Tensor& out)) {     \
    put(out, at::grid_sampler_##N##d(self, grid, mode, padding, align));                                        \
  }                                                                                                             \
  ACLNN(aclnnGridSampler##N##DBackward,                                                                         \
        (const Tensor& grad, const Tensor& self, const Tensor& grid, int64_t mode, int64_t padding, bool align, \
         std::array<bool, 2> mask, const MaybeTensor& dself, const MaybeTensor& dgrid)) {                       \
    const auto [dx, dg] = at::grid_sampler_##N##d_backward(grad, self, grid, mode, padding, align, mask);       \
    put(dself, dx);                                                                                             \
    put(dgrid, dg);                                                                                             \
  }
GRID_SAMPLER(2)
GRID_SAMPLER(3)
ACLNN(aclnnAffineGrid, (const Tensor& theta, const Ints& size, bool align, Tensor& out)) {
  put(out, at::affine_grid_generator(theta, size, align));
}
