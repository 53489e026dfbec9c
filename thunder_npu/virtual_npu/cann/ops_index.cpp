// Moving data: indexing, gathering and scattering, joining, padding, tensors made from nothing.
#include "aclnn.h"

using namespace vnpu;

namespace {
// torch_npu marks an axis that is not indexed by an empty 1-D tensor of the data's own dtype. For int64 data that could
// also be a real index that selects nothing; where it matters the callers below tell the two apart.
bool is_marker(const Tensor& index, ScalarType data) {
  return !index.defined() || (index.dim() == 1 && index.numel() == 0 && index.scalar_type() == data);
}

c10::List<std::optional<Tensor>> index_list(const Tensors& indices, ScalarType data) {
  c10::List<std::optional<Tensor>> list;
  for (const auto& index : indices) list.push_back(is_marker(index, data) ? std::nullopt : std::make_optional(index));
  return list;
}

Tensor index_tensor(const Ints& values) { return at::tensor(at::IntArrayRef(values), at::kLong); }

void scatter_into(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, int64_t reduction) {
  if (reduction == 0)
    self.scatter_(dim, index, source);
  else
    self.scatter_(dim, index, source, reduction == 1 ? "add" : "multiply");
}

void scatter_value_into(Tensor& self, int64_t dim, const Tensor& index, const Scalar& value, int64_t reduction) {
  if (reduction == 0)
    self.scatter_(dim, index, value);
  else
    self.scatter_(dim, index, value, reduction == 1 ? "add" : "multiply");
}

void copy_if_apart(Tensor& out, const Tensor& self) {
  if (out.data_ptr() != self.data_ptr()) out.copy_(self);
}
}  // namespace

// ---- indexing -------------------------------------------------------------------------------------------------------
ACLNN(aclnnIndex, (const Tensor& self, const Tensors& indices, Tensor& out)) {
  if (out.numel()) out.copy_(at::index(self, index_list(indices, self.scalar_type())));
}
ACLNN(aclnnIndexPutImpl, (Tensor& self, const Tensors& indices, const Tensor& values, bool accumulate, bool unsafe)) {
  const auto data = self.scalar_type();
  const bool selects =
      std::any_of(indices.begin(), indices.end(), [&](auto& index) { return !is_marker(index, data); });
  if (selects) at::_index_put_impl_(self, index_list(indices, data), values, accumulate, unsafe);
}
ACLNN(aclnnIndexSelect, (const Tensor& self, int64_t dim, const Tensor& index, Tensor& out)) {
  at::index_select_out(out, self, dim, index);
}
ACLNN(aclnnIndexAdd,
      (const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha, Tensor& out)) {
  copy_if_apart(out, self);
  out.index_add_(dim, index, source, alpha);
}
ACLNN(aclnnIndexCopy, (const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, Tensor& out)) {
  out.copy_(at::index_copy(self, dim, index.to(at::kLong), source));
}
ACLNN(aclnnInplaceIndexCopy, (Tensor& self, int64_t dim, const Tensor& index, const Tensor& source)) {
  self.index_copy_(dim, index.to(at::kLong), source);
}
ACLNN(aclnnIndexFill, (const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value, Tensor& out)) {
  out.copy_(self).index_fill_(dim, index.to(at::kLong), value);
}
ACLNN(aclnnInplaceIndexFill, (Tensor& self, int64_t dim, const Tensor& index, const Scalar& value)) {
  self.index_fill_(dim, index.to(at::kLong), value);
}
ACLNN(aclnnIndexFillTensor, (const Tensor& self, int64_t dim, const Ints& index, const Scalar& value, Tensor& out)) {
  out.copy_(self).index_fill_(dim, index_tensor(index), value);
}
ACLNN(aclnnInplaceIndexFillTensor, (Tensor& self, int64_t dim, const Ints& index, const Scalar& value)) {
  self.index_fill_(dim, index_tensor(index), value);
}
ACLNN(aclnnTake, (const Tensor& self, const Tensor& index, Tensor& out)) {
  out.copy_(at::take(self, index.to(at::kLong)));
}
ACLNN(aclnnInplacePut, (Tensor& self, const Tensor& index, const Tensor& source, bool accumulate)) {
  self.put_(index.to(at::kLong), source, accumulate);
}
ACLNN(aclnnGather, (const Tensor& self, int64_t dim, const Tensor& index, Tensor& out)) {
  at::gather_out(out, self, dim, index.to(at::kLong));
}
ACLNN(aclnnScatter,
      (const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, int64_t reduction, Tensor& out)) {
  copy_if_apart(out, self);
  scatter_into(out, dim, index.to(at::kLong), source, reduction);
}
ACLNN(aclnnScatterValue,
      (const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value, int64_t reduction, Tensor& out)) {
  copy_if_apart(out, self);
  scatter_value_into(out, dim, index.to(at::kLong), value, reduction);
}
ACLNN(aclnnInplaceScatter, (Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, int64_t reduction)) {
  scatter_into(self, dim, index.to(at::kLong), source, reduction);
}
ACLNN(aclnnInplaceScatterValue,
      (Tensor& self, int64_t dim, const Tensor& index, const Scalar& value, int64_t reduction)) {
  scatter_value_into(self, dim, index.to(at::kLong), value, reduction);
}
ACLNN(aclnnScatterAdd, (const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, Tensor& out)) {
  copy_if_apart(out, self);
  out.scatter_add_(dim, index.to(at::kLong), source);
}
ACLNN(aclnnInplaceMaskedScatter, (Tensor& self, const Tensor& mask, const Tensor& source)) {
  self.masked_scatter_(mask.to(at::kBool), source);
}
ACLNN(aclnnInplaceFillDiagonal, (Tensor& self, const Scalar& value, bool wrap)) { self.fill_diagonal_(value, wrap); }
ACLNN(aclnnEmbedding, (const Tensor& weight, const Tensor& indices, Tensor& out)) {
  out.copy_(at::embedding(weight, indices));
}
ACLNN(aclnnEmbeddingDenseBackward, (const Tensor& grad, const Tensor& indices, int64_t rows, int64_t padding_idx,
                                    bool scale_grad_by_freq, Tensor& out)) {
  out.copy_(at::embedding_dense_backward(grad, indices, rows, padding_idx, scale_grad_by_freq));
}
ACLNN(aclnnEmbeddingRenorm, (Tensor& self, const Tensor& indices, double max_norm, double norm_type)) {
  at::embedding_renorm_(self, indices, max_norm, norm_type);
}
ACLNN(aclnnOneHot,
      (const Tensor& self, int64_t depth, const Tensor& on, const Tensor& off, int64_t axis, Tensor& out)) {
  const Tensor classes = at::arange(depth, at::kLong);
  Ints shape(out.dim(), 1);
  shape[axis < 0 ? axis + out.dim() : axis] = depth;
  const Tensor hit = self.to(at::kLong).unsqueeze(axis).eq(classes.view(shape));
  out.copy_(at::where(hit, on.reshape({}), off.reshape({})));
}

// ---- joining, repeating, turning ------------------------------------------------------------------------------------
ACLNN(aclnnCat, (const Tensors& tensors, int64_t dim, Tensor& out)) { at::cat_out(out, tensors, dim); }
ACLNN(aclnnStack, (const Tensors& tensors, int64_t dim, Tensor& out)) { at::stack_out(out, tensors, dim); }
ACLNN(aclnnSplitWithSize, (const Tensor& self, const Ints& sizes, int64_t dim, Tensors& out)) {
  const auto parts = self.split_with_sizes(sizes, dim);
  for (size_t i = 0; i < parts.size(); ++i) out.at(i).copy_(parts[i]);
}
ACLNN(aclnnRepeat, (const Tensor& self, const Ints& repeats, Tensor& out)) { out.copy_(self.repeat(repeats)); }
ACLNN(aclnnRepeatInterleave, (const Tensor& self, const Tensor& repeats, int64_t, Tensor& out)) {
  out.copy_(at::repeat_interleave(self, repeats));
}
ACLNN(aclnnRepeatInterleaveWithDim, (const Tensor& self, const Tensor& repeats, int64_t dim, int64_t, Tensor& out)) {
  out.copy_(at::repeat_interleave(self, repeats, dim));
}
ACLNN(aclnnRepeatInterleaveInt, (const Tensor& self, int64_t repeats, int64_t, Tensor& out)) {
  out.copy_(at::repeat_interleave(self, repeats));
}
ACLNN(aclnnRepeatInterleaveIntWithDim, (const Tensor& self, int64_t repeats, int64_t dim, int64_t, Tensor& out)) {
  out.copy_(at::repeat_interleave(self, repeats, dim));
}
ACLNN(aclnnFlip, (const Tensor& self, const Ints& dims, Tensor& out)) { out.copy_(at::flip(self, dims)); }
ACLNN(aclnnRoll, (const Tensor& self, const Ints& shifts, const Ints& dims, Tensor& out)) {
  out.copy_(at::roll(self, shifts, dims));
}
ACLNN(aclnnChannelShuffle, (const Tensor& self, int64_t groups, Tensor& out)) {
  out.copy_(at::channel_shuffle(self, groups));
}
ACLNN(aclnnTril, (const Tensor& self, int64_t diagonal, Tensor& out)) { at::tril_out(out, self, diagonal); }
ACLNN(aclnnTriu, (const Tensor& self, int64_t diagonal, Tensor& out)) { at::triu_out(out, self, diagonal); }
ACLNN(aclnnInplaceTril, (Tensor& self, int64_t diagonal)) { self.tril_(diagonal); }
ACLNN(aclnnInplaceTriu, (Tensor& self, int64_t diagonal)) { self.triu_(diagonal); }
ACLNN(aclnnUnfoldGrad, (const Tensor& grad, const Ints& sizes, int64_t dim, int64_t size, int64_t step, Tensor& out)) {
  out.copy_(at::unfold_backward(grad, sizes, dim, size, step));
}

// ---- padding --------------------------------------------------------------------------------------------------------
ACLNN(aclnnConstantPadNd, (const Tensor& self, const Ints& pad, const Scalar& value, Tensor& out)) {
  out.copy_(at::constant_pad_nd(self, pad, value));
}
#define PAD(NAME, OP)                                                                                              \
  ACLNN(aclnn##NAME, (const Tensor& self, const Ints& padding, Tensor& out)) { at::OP##_out(out, self, padding); } \
  ACLNN(aclnn##NAME##Backward, (const Tensor& grad, const Tensor& self, const Ints& padding, Tensor& out)) {       \
    at::OP##_backward_out(out, grad, self, padding);                                                               \
  }
PAD(ReflectionPad1d, reflection_pad1d)
PAD(ReflectionPad2d, reflection_pad2d)
PAD(ReflectionPad3d, reflection_pad3d)
PAD(ReplicationPad1d, replication_pad1d)
PAD(ReplicationPad2d, replication_pad2d)
PAD(ReplicationPad3d, replication_pad3d)

// ---- tensors from nothing -------------------------------------------------------------------------------------------
ACLNN(aclnnArange, (const Scalar& start, const Scalar& end, const Scalar& step, Tensor& out)) {
  at::arange_out(out, start, end, step);
}
ACLNN(aclnnRange, (const Scalar& start, const Scalar& end, const Scalar& step, Tensor& out)) {
  at::range_out(out, start, end, step);
}
ACLNN(aclnnLinspace, (const Scalar& start, const Scalar& end, int64_t steps, Tensor& out)) {
  at::linspace_out(out, start, end, steps);
}
ACLNN(aclnnLogSpace, (const Scalar& start, const Scalar& end, int64_t steps, double base, Tensor& out)) {
  at::logspace_out(out, start, end, steps, base);
}
ACLNN(aclnnEye, (int64_t rows, int64_t columns, Tensor& out)) { at::eye_out(out, rows, columns); }
