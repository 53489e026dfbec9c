// Random numbers. Each call gets a seed and an offset from torch_npu's generator; the same pair gives the same numbers.
// They are Mersenne Twister numbers of a CPU generator, not the Philox numbers of an NPU.
#include <ATen/CPUGeneratorImpl.h>

#include "aclnn.h"

using namespace vnpu;

namespace {
at::Generator generator(uint64_t seed, uint64_t offset) {
  return at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15ull + offset);
}

void write_mask(Tensor& mask, const Tensor& bytes) { mask.reshape({-1}).narrow(0, 0, bytes.numel()).copy_(bytes); }

void apply_mask(const Tensor& self, const Tensor& mask, double p, Tensor& out) {
  const Tensor keep = dropout_bits(mask, self.numel()).view(self.sizes());
  at::where_out(out, keep, p < 1 ? self / (1 - p) : self, at::zeros({}, self.options()));
}

int64_t elements(const Ints& shape) { return c10::multiply_integers(shape); }
}  // namespace

Tensor vnpu::draw_dropout_mask(int64_t numel, double p, uint64_t seed, uint64_t offset) {
  const Tensor keep =
      at::empty({(numel + 127) / 128 * 128 / 8, 8}, at::kByte).bernoulli_(1 - p, generator(seed, offset));
  return keep.mul(at::tensor({1, 2, 4, 8, 16, 32, 64, 128}, at::kByte)).sum(1, false, at::kByte);
}

ACLNN(aclnnInplaceNormal, (Tensor& self, float mean, float std, int64_t seed, int64_t offset)) {
  self.normal_(mean, std, generator(seed, offset));
}
ACLNN(aclnnNormalFloatFloat, (float mean, float std, int64_t seed, int64_t offset, Tensor& out)) {
  out.normal_(mean, std, generator(seed, offset));
}
ACLNN(aclnnNormalFloatTensor, (float mean, const Tensor& std, int64_t seed, int64_t offset, Tensor& out)) {
  out.copy_(at::normal(mean, std, generator(seed, offset)));
}
ACLNN(aclnnNormalTensorFloat, (const Tensor& mean, float std, int64_t seed, int64_t offset, Tensor& out)) {
  out.copy_(at::normal(mean, std, generator(seed, offset)));
}
ACLNN(aclnnNormalTensorTensor, (const Tensor& mean, const Tensor& std, int64_t seed, int64_t offset, Tensor& out)) {
  out.copy_(at::normal(mean, std, generator(seed, offset)));
}
ACLNN(aclnnInplaceUniform, (Tensor& self, double from, double to, int64_t seed, int64_t offset)) {
  self.uniform_(from, to, generator(seed, offset));
}
ACLNN(aclnnInplaceRandom, (Tensor& self, int64_t from, int64_t to, uint64_t seed, uint64_t offset)) {
  self.random_(from, to, generator(seed, offset));
}
ACLNN(aclnnInplaceBernoulli, (Tensor& self, const Scalar& p, uint64_t seed, uint64_t offset)) {
  self.bernoulli_(p.toDouble(), generator(seed, offset));
}
ACLNN(aclnnInplaceBernoulliTensor, (Tensor& self, const Tensor& p, uint64_t seed, uint64_t offset)) {
  self.bernoulli_(p, generator(seed, offset));
}
ACLNN(aclnnSimThreadExponential, (Tensor& self, int64_t, double lambd, int64_t seed, int64_t offset)) {
  self.exponential_(lambd, generator(seed, offset));
}
ACLNN(aclnnMultinomial,
      (const Tensor& self, int64_t samples, bool replacement, uint64_t seed, uint64_t offset, Tensor& out)) {
  out.copy_(at::multinomial(self, samples, replacement, generator(seed, offset)));
}
ACLNN(aclnnRandperm, (int64_t n, uint64_t seed, uint64_t offset, Tensor& out)) {
  out.copy_(at::randperm(n, generator(seed, offset), at::kLong));
}

// ---- dropout --------------------------------------------------------------------------------------------------------
ACLNN(aclnnDropoutGenMask, (const Ints& shape, double p, int64_t seed, int64_t offset, Tensor& mask)) {
  write_mask(mask, draw_dropout_mask(elements(shape), p, seed, offset));
}
ACLNN(aclnnDropoutGenMaskV2, (const Ints& shape, double p, int64_t seed, int64_t offset, ScalarType, Tensor& mask)) {
  write_mask(mask, draw_dropout_mask(elements(shape), p, seed, offset));
}
ACLNN(aclnnDropoutDoMask, (const Tensor& self, const Tensor& mask, double p, Tensor& out)) {
  apply_mask(self, mask, p, out);
}
ACLNN(aclnnDropoutV3,
      (const Tensor& self, const MaybeTensor&, double p, int64_t seed, int64_t offset, Tensor& out, Tensor& mask)) {
  write_mask(mask, draw_dropout_mask(self.numel(), p, seed, offset));
  apply_mask(self, mask, p, out);
}
