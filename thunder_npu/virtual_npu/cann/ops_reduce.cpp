// Reductions, scans, sorting, searching, and the operators whose output shape depends on the data.
#include "aclnn.h"

using namespace vnpu;

namespace {
// torch_npu passes the dtype it wants; an undefined one means the input's.
std::optional<ScalarType> maybe(ScalarType type) {
  return type == ScalarType::Undefined ? std::nullopt : std::make_optional(type);
}
}  // namespace

ACLNN(aclnnReduceSum, (const Tensor& self, const Ints& dim, bool keepdim, ScalarType dtype, Tensor& out)) {
  at::sum_out(out, self, dim, keepdim, maybe(dtype));
}
ACLNN(aclnnReduceNansum, (const Tensor& self, const Ints& dim, bool keepdim, ScalarType dtype, Tensor& out)) {
  at::nansum_out(out, self, dim, keepdim, maybe(dtype));
}
ACLNN(aclnnMean, (const Tensor& self, const Ints& dim, bool keepdim, ScalarType dtype, Tensor& out)) {
  at::mean_out(out, self, dim, keepdim, maybe(dtype));
}
ACLNN(aclnnProd, (const Tensor& self, ScalarType dtype, Tensor& out)) { put(out, at::prod(self, maybe(dtype))); }
ACLNN(aclnnProdDim, (const Tensor& self, int64_t dim, bool keepdim, ScalarType dtype, Tensor& out)) {
  at::prod_out(out, self, dim, keepdim, maybe(dtype));
}
ACLNN(aclnnAmax, (const Tensor& self, const Ints& dim, bool keepdim, Tensor& out)) {
  at::amax_out(out, self, dim, keepdim);
}
ACLNN(aclnnAmin, (const Tensor& self, const Ints& dim, bool keepdim, Tensor& out)) {
  at::amin_out(out, self, dim, keepdim);
}
ACLNN(aclnnAminmax, (const Tensor& self, const Ints& dim, bool keepdim, Tensor& min, Tensor& max)) {
  at::amin_out(min, self, dim, keepdim);
  at::amax_out(max, self, dim, keepdim);
}
ACLNN(aclnnAminmaxAll, (const Tensor& self, Tensor& min, Tensor& max)) {
  put(min, at::min(self));
  put(max, at::max(self));
}
ACLNN(aclnnAminmaxDim, (const Tensor& self, int64_t dim, bool keepdim, Tensor& min, Tensor& max)) {
  at::amin_out(min, self, dim, keepdim);
  at::amax_out(max, self, dim, keepdim);
}
ACLNN(aclnnMax, (const Tensor& self, Tensor& out)) { put(out, at::max(self)); }
ACLNN(aclnnMin, (const Tensor& self, Tensor& out)) { put(out, at::min(self)); }
ACLNN(aclnnMaxDim, (const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices)) {
  auto [value, index] = at::max(self, dim, keepdim);
  put(values, value);
  put(indices, index);
}
ACLNN(aclnnMinDim, (const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices)) {
  auto [value, index] = at::min(self, dim, keepdim);
  put(values, value);
  put(indices, index);
}
ACLNN(aclnnArgMax, (const Tensor& self, int64_t dim, bool keepdim, Tensor& out)) {
  put(out, at::argmax(self, dim, keepdim));
}
ACLNN(aclnnArgMin, (const Tensor& self, int64_t dim, bool keepdim, Tensor& out)) {
  put(out, at::argmin(self, dim, keepdim));
}
ACLNN(aclnnAll, (const Tensor& self, const Ints& dim, bool keepdim, Tensor& out)) {
  put(out, at::all(self, at::OptionalIntArrayRef(dim), keepdim));
}
ACLNN(aclnnAny, (const Tensor& self, const Ints& dim, bool keepdim, Tensor& out)) {
  put(out, at::any(self, at::OptionalIntArrayRef(dim), keepdim));
}
ACLNN(aclnnStd, (const Tensor& self, const Ints& dim, int64_t correction, bool keepdim, Tensor& out)) {
  at::std_out(out, self, dim, Scalar(correction), keepdim);
}
ACLNN(aclnnStdMeanCorrection,
      (const Tensor& self, const Ints& dim, int64_t correction, bool keepdim, Tensor& std, Tensor& mean)) {
  auto [deviation, average] = at::std_mean(self, dim, Scalar(correction), keepdim);
  put(std, deviation);
  put(mean, average);
}
ACLNN(aclnnVarCorrection, (const Tensor& self, const Ints& dim, int64_t correction, bool keepdim, Tensor& out)) {
  at::var_out(out, self, dim, Scalar(correction), keepdim);
}
ACLNN(aclnnVarMean,
      (const Tensor& self, const Ints& dim, int64_t correction, bool keepdim, Tensor& var, Tensor& mean)) {
  auto [variance, average] = at::var_mean(self, dim, Scalar(correction), keepdim);
  put(var, variance);
  put(mean, average);
}
ACLNN(aclnnNorm, (const Tensor& self, const Scalar& p, const Ints& dim, bool keepdim, Tensor& out)) {
  at::norm_out(out, self, p, dim, keepdim);
}
ACLNN(aclnnLinalgVectorNorm,
      (const Tensor& self, const Scalar& order, const Ints& dim, bool keepdim, ScalarType dtype, Tensor& out)) {
  put(out, at::linalg_vector_norm(self, order, dim.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dim),
                                  keepdim, maybe(dtype)));
}
ACLNN(aclnnLogSumExp, (const Tensor& self, const Ints& dim, bool keepdim, Tensor& out)) {
  at::logsumexp_out(out, self, dim, keepdim);
}
ACLNN(aclnnMedian, (const Tensor& self, Tensor& out)) { put(out, at::median(self)); }
ACLNN(aclnnNanMedian, (const Tensor& self, Tensor& out)) { put(out, at::nanmedian(self)); }
ACLNN(aclnnMedianDim, (const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices)) {
  at::median_out(values, indices, self, dim, keepdim);
}
ACLNN(aclnnNanMedianDim, (const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices)) {
  at::nanmedian_out(values, indices, self, dim, keepdim);
}
ACLNN(aclnnKthvalue, (const Tensor& self, int64_t k, int64_t dim, bool keepdim, Tensor& values, Tensor& indices)) {
  at::kthvalue_out(values, indices, self, k, dim, keepdim);
}
ACLNN(aclnnRenorm, (const Tensor& self, const Scalar& p, int64_t dim, const Scalar& maxnorm, Tensor& out)) {
  at::renorm_out(out, self, p, dim, maxnorm);
}
ACLNN(aclnnInplaceRenorm, (Tensor& self, const Scalar& p, int64_t dim, const Scalar& maxnorm)) {
  self.renorm_(p, dim, maxnorm);
}
ACLNN(aclnnTrace, (const Tensor& self, Tensor& out)) { put(out, at::trace(self)); }
ACLNN(aclnnBincount, (const Tensor& self, const MaybeTensor& weights, int64_t minlength, Tensor& out)) {
  put(out, at::bincount(self, weights, minlength));
}
ACLNN(aclnnHistc, (const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max, Tensor& out)) {
  put(out, at::histc(self.is_floating_point() ? self : self.to(at::kFloat), bins, min, max));
}

// ---- scans ----------------------------------------------------------------------------------------------------------
ACLNN(aclnnCumsum, (const Tensor& self, int64_t dim, ScalarType dtype, Tensor& out)) {
  at::cumsum_out(out, self, dim, maybe(dtype));
}
ACLNN(aclnnCumprod, (const Tensor& self, const Scalar& dim, ScalarType dtype, Tensor& out)) {
  at::cumprod_out(out, self, dim.toLong(), maybe(dtype));
}
ACLNN(aclnnCummax, (const Tensor& self, int64_t dim, Tensor& values, Tensor& indices)) {
  auto [value, index] = at::cummax(self, dim);
  put(values, value);
  put(indices, index);
}
ACLNN(aclnnCummin, (const Tensor& self, int64_t dim, Tensor& values, Tensor& indices)) {
  auto [value, index] = at::cummin(self, dim);
  put(values, value);
  put(indices, index);
}

// ---- sorting and searching ------------------------------------------------------------------------------------------
ACLNN(aclnnSort, (const Tensor& self, bool stable, int64_t dim, bool descending, Tensor& values, Tensor& indices)) {
  at::sort_out(values, indices, self, stable, dim, descending);
}
ACLNN(aclnnTopk,
      (const Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted, Tensor& values, Tensor& indices)) {
  at::topk_out(values, indices, self, k, dim, largest, sorted);
}
ACLNN(aclnnSearchSorted,
      (const Tensor& sequence, const Tensor& self, bool int32, bool right, const MaybeTensor& sorter, Tensor& out)) {
  put(out, at::searchsorted(sequence, self, int32, right, std::nullopt, sorter));
}
ACLNN(aclnnSearchSorteds,
      (const Tensor& sequence, const Scalar& self, bool int32, bool right, const MaybeTensor& sorter, Tensor& out)) {
  put(out, at::searchsorted(sequence, self, int32, right, std::nullopt, sorter));
}
ACLNN(aclnnIsInScalarTensor,
      (const Scalar& element, const Tensor& tests, bool assume_unique, bool invert, Tensor& out)) {
  put(out, at::isin(element, tests, assume_unique, invert));
}
ACLNN(aclnnIsInTensorScalar,
      (const Tensor& elements, const Scalar& test, bool assume_unique, bool invert, Tensor& out)) {
  put(out, at::isin(elements, test, assume_unique, invert));
}

// ---- outputs sized by the data --------------------------------------------------------------------------------------
ACLNN(aclnnNonzero, (const Tensor& self, const DynamicOut& out)) { out.set(at::nonzero(self)); }
ACLNN(aclnnNonzeroV2, (const Tensor& self, const DynamicOut& out)) { out.set(at::nonzero(self).t()); }
ACLNN(aclnnMaskedSelect, (const Tensor& self, const Tensor& mask, const DynamicOut& out)) {
  out.set(at::masked_select(self, mask.to(at::kBool)));
}
ACLNN(aclnnUnique, (const Tensor& self, bool sorted, bool return_inverse, const DynamicOut& out, Tensor& inverse)) {
  auto [values, where] = at::_unique(self, sorted, return_inverse);
  out.set(values);
  if (return_inverse) put(inverse, where);
}
ACLNN(aclnnUnique2, (const Tensor& self, bool sorted, bool return_inverse, bool return_counts, const DynamicOut& out,
                     Tensor& inverse, const DynamicOut& counts)) {
  auto [values, where, count] = at::_unique2(self, sorted, return_inverse, return_counts);
  out.set(values);
  if (return_inverse) put(inverse, where);
  if (return_counts) counts.set(count);
}
ACLNN(aclnnUniqueConsecutive, (const Tensor& self, bool return_inverse, bool return_counts, int64_t dim,
                               const DynamicOut& out, Tensor& inverse, const DynamicOut& counts)) {
  constexpr int64_t kNoDim = 1000;  // torch_npu's "no dim given"
  auto [values, where, count] = at::unique_consecutive(self, return_inverse, return_counts,
                                                       dim == kNoDim ? std::nullopt : std::make_optional(dim));
  out.set(values);
  if (return_inverse) put(inverse, where);
  if (return_counts) counts.set(count);
}
ACLNN(aclnnUniqueDim, (const Tensor& self, bool sorted, bool return_inverse, int64_t dim, const DynamicOut& out,
                       Tensor& inverse, const DynamicOut& counts)) {
  auto [values, where, count] = at::unique_dim(self, dim, sorted, return_inverse, true);
  out.set(values);
  if (return_inverse) put(inverse, where);
  counts.set(count);
}
