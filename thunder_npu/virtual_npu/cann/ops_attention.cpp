// Fused attention and rotary embedding. What the tiled kernels compute block by block is computed whole here, in
// float32.
#include <ATen/ExpandUtils.h>

#include "aclnn.h"

using namespace vnpu;

namespace {
constexpr int64_t kNoLimit = 2147483647;  // pre_tokens and next_tokens that hide nothing

// CANN's sparse modes; 5 to 8 (prefixes and packed sequences) are not emulated.
enum SparseMode { kDefaultMask = 0, kAllMask = 1, kLeftUpCausal = 2, kRightDownCausal = 3, kBand = 4 };

struct Attention {
  double scale, keep_prob;
  int64_t pre_tokens, next_tokens, heads;
  std::string layout;
  int64_t sparse_mode, pse_type;
  MaybeTensor pse, drop_mask, hidden;

  // To [batch, heads, length, head size] and back.
  Tensor split(const Tensor& x, int64_t head_count) const {
    if (layout == "BNSD") return x;
    if (layout == "BSND") return x.transpose(1, 2);
    if (layout == "BSH") return x.unflatten(2, {head_count, -1}).transpose(1, 2);
    if (layout == "SBH") return x.unflatten(2, {head_count, -1}).permute({1, 2, 0, 3});
    TORCH_CHECK(false, "attention with layout ", layout, " is not emulated, only BNSD, BSND, BSH and SBH");
  }
  Tensor join(const Tensor& x) const {
    if (layout == "BNSD") return x;
    if (layout == "BSND") return x.transpose(1, 2);
    if (layout == "BSH") return x.transpose(1, 2).flatten(2);
    return x.permute({2, 0, 1, 3}).flatten(2);
  }
  // Key and value may have fewer heads, each serving a group of query heads.
  int64_t key_heads(const Tensor& query, const Tensor& key) const {
    if (layout == "BNSD") return key.size(1);
    if (layout == "BSND") return key.size(2);
    return key.size(2) / (query.size(2) / heads);
  }

  // True where a key is hidden from a query; undefined if nothing is.
  Tensor mask(int64_t queries, int64_t keys) const {
    const auto beyond = [&](int64_t before, int64_t after, int64_t shift) {
      const Tensor distance = at::arange(keys) - (at::arange(queries) + shift).unsqueeze(1);
      return at::logical_or(distance > after, distance < -before);
    };
    switch (sparse_mode) {
      case kDefaultMask:
      case kAllMask: {
        if (!hidden) return {};
        const Tensor given = hidden->to(at::kBool);
        const bool banded = sparse_mode == kDefaultMask && (pre_tokens < kNoLimit || next_tokens < kNoLimit);
        return banded ? at::logical_or(given, beyond(pre_tokens, next_tokens, 0)) : given;
      }
      case kLeftUpCausal:
        return beyond(kNoLimit, 0, 0);
      case kRightDownCausal:
        return beyond(kNoLimit, 0, keys - queries);
      case kBand:
        return beyond(pre_tokens, next_tokens, keys - queries);
      default:
        TORCH_CHECK(false, "attention with sparse mode ", sparse_mode, " is not emulated, only 0 to 4");
    }
  }

  Tensor scores(const Tensor& q, const Tensor& k) const {
    Tensor s = at::matmul(q, k.transpose(-2, -1));
    TORCH_CHECK(!pse || pse_type <= 1, "attention with an inner position bias (pse_type ", pse_type,
                ") is not emulated");
    if (pse && pse_type == 1) s.add_(*pse);
    s.mul_(scale);
    if (pse && pse_type == 0) s.add_(*pse);
    const Tensor hide = mask(q.size(-2), k.size(-2));
    return hide.defined() ? s.masked_fill_(hide, -std::numeric_limits<double>::infinity()) : s;
  }

  // What dropout multiplies the probabilities with: 0 or 1 / keep_prob.
  Tensor dropout(const Tensor& probabilities) const {
    if (!drop_mask || keep_prob >= 1) return {};
    const Tensor keep = dropout_bits(*drop_mask, probabilities.numel()).view(probabilities.sizes()).to(at::kFloat);
    return keep_prob > 0 ? keep / keep_prob : keep;
  }

  Tensor wide(const Tensor& x, int64_t head_count) const {
    const Tensor heads_apart = split(x, head_count).to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    return head_count == heads ? heads_apart : at::repeat_interleave(heads_apart, heads / head_count, 1);
  }

  void forward(const Tensor& query, const Tensor& key, const Tensor& value, Tensor& row_max, Tensor& row_sum,
               Tensor& out) const {
    const int64_t kv = key_heads(query, key);
    const Tensor s = scores(wide(query, heads), wide(key, kv));
    const Tensor top = s.amax({-1}, true);
    const Tensor safe = at::where(at::isneginf(top), at::zeros_like(top), top);  // a fully hidden row gives zeros
    const Tensor e = at::exp(s - safe);
    const Tensor sum = e.sum({-1}, true, std::nullopt);
    row_max.copy_(top.expand(row_max.sizes()));
    row_sum.copy_(sum.expand(row_sum.sizes()));
    Tensor p = e / at::where(sum == 0, at::ones_like(sum), sum);
    if (const Tensor drop = dropout(p); drop.defined()) p = p * drop;
    out.copy_(join(at::matmul(p, wide(value, kv))));
  }

  void backward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, const Tensor& row_max,
                const Tensor& row_sum, Tensor& dq, Tensor& dk, Tensor& dv, const MaybeTensor& dpse) const {
    const int64_t kv = key_heads(query, key);
    const Tensor q = wide(query, heads), k = wide(key, kv), v = wide(value, kv), g = wide(grad, heads);
    const Tensor top = row_max.narrow(-1, 0, 1), sum = row_sum.narrow(-1, 0, 1);
    const Tensor shifted = scores(q, k) - at::where(at::isneginf(top), at::zeros_like(top), top);
    const Tensor p = at::exp(shifted) / at::where(sum == 0, at::ones_like(sum), sum);
    const Tensor drop = dropout(p);
    const Tensor dropped = drop.defined() ? p * drop : p;
    Tensor dp = at::matmul(g, v.transpose(-2, -1));
    if (drop.defined()) dp = dp * drop;
    const Tensor ds = p * (dp - (dp * p).sum({-1}, true, std::nullopt));
    const auto grouped = [&](const Tensor& x) {  // the heads of a group add up
      return kv == heads ? x : x.unflatten(1, {kv, heads / kv}).sum(2);
    };
    dq.copy_(join(at::matmul(ds, k) * scale));
    dk.copy_(join(grouped(at::matmul(ds.transpose(-2, -1), q) * scale)));
    dv.copy_(join(grouped(at::matmul(dropped.transpose(-2, -1), g))));
    if (pse && dpse && dpse->numel()) {
      Tensor room = *dpse;
      room.copy_(at::sum_to((pse_type == 1 ? ds * scale : ds), pse->sizes()));
    }
  }
};
}  // namespace

ACLNN(aclnnFlashAttentionScore,
      (const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& pse,
       const MaybeTensor& drop_mask, const MaybeTensor&, const MaybeTensor& hidden, const Ints&, double scale,
       double keep_prob, int64_t pre, int64_t next, int64_t heads, const char* layout, int64_t, int64_t sparse_mode,
       Tensor& row_max, Tensor& row_sum, const MaybeTensor&, Tensor& out)) {
  Attention{scale, keep_prob, pre, next, heads, layout, sparse_mode, 1, pse, drop_mask, hidden}.forward(
      query, key, value, row_max, row_sum, out);
}
ACLNN(aclnnFlashAttentionScoreV2,
      (const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& pse,
       const MaybeTensor& drop_mask, const MaybeTensor&, const MaybeTensor& hidden, const Ints&, const Ints&,
       const Ints&, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads, const char* layout,
       int64_t, int64_t sparse_mode, int64_t pse_type, Tensor& row_max, Tensor& row_sum, const MaybeTensor&,
       Tensor& out)) {
  Attention{scale, keep_prob, pre, next, heads, layout, sparse_mode, pse_type, pse, drop_mask, hidden}.forward(
      query, key, value, row_max, row_sum, out);
}
ACLNN(aclnnFlashAttentionScoreGrad,
      (const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, const MaybeTensor& pse,
       const MaybeTensor& drop_mask, const MaybeTensor&, const MaybeTensor& hidden, const Tensor& row_max,
       const Tensor& row_sum, const MaybeTensor&, const MaybeTensor&, const Ints&, double scale, double keep_prob,
       int64_t pre, int64_t next, int64_t heads, const char* layout, int64_t, int64_t sparse_mode, Tensor& dq,
       Tensor& dk, Tensor& dv, const MaybeTensor& dpse)) {
  Attention{scale, keep_prob, pre, next, heads, layout, sparse_mode, 1, pse, drop_mask, hidden}.backward(
      query, key, value, grad, row_max, row_sum, dq, dk, dv, dpse);
}
ACLNN(aclnnFlashAttentionScoreGradV2,
      (const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, const MaybeTensor& pse,
       const MaybeTensor& drop_mask, const MaybeTensor&, const MaybeTensor& hidden, const Tensor& row_max,
       const Tensor& row_sum, const MaybeTensor&, const MaybeTensor&, const Ints&, const Ints&, const Ints&,
       double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads, const char* layout, int64_t,
       int64_t sparse_mode, int64_t pse_type, Tensor& dq, Tensor& dk, Tensor& dv, const MaybeTensor& dpse)) {
  Attention{scale, keep_prob, pre, next, heads, layout, sparse_mode, pse_type, pse, drop_mask, hidden}.backward(
      query, key, value, grad, row_max, row_sum, dq, dk, dv, dpse);
}

// The form for Atlas A5, where the kernel draws its own dropout mask. Quantised inputs, sinks and rotary parts are not
// emulated: torch_npu passes null for them unless asked.
namespace {
MaybeTensor own_mask(const MaybeTensor& given, const Tensor& query, const Tensor& key, const Attention& attention,
                     int64_t seed, int64_t offset) {
  if (given || attention.keep_prob >= 1) return given;
  const Tensor q = attention.split(query, attention.heads);
  const Tensor k = attention.split(key, attention.key_heads(query, key));
  return draw_dropout_mask(q.size(0) * q.size(1) * q.size(2) * k.size(2), 1 - attention.keep_prob, seed, offset);
}

void refuse(const char* what, std::initializer_list<const MaybeTensor*> tensors) {
  for (const auto* tensor : tensors)
    TORCH_CHECK(!*tensor || !(*tensor)->numel(), "attention with ", what, " is not emulated");
}
}  // namespace
ACLNN(aclnnFlashAttentionScoreV4,
      (const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& pse,
       const MaybeTensor& drop_mask, const MaybeTensor&, const MaybeTensor& hidden, const MaybeTensor& query_rope,
       const MaybeTensor& key_rope, const MaybeTensor& scale_q, const MaybeTensor& scale_k, const MaybeTensor& scale_v,
       const MaybeTensor& sink, const Ints&, const Ints& query_lengths, const Ints&, const Ints&, const Ints&,
       double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads, const char* layout, int64_t,
       int64_t sparse_mode, int64_t, int64_t pse_type, const char*, int64_t seed, int64_t offset, Tensor& row_max,
       Tensor& row_sum, const MaybeTensor&, Tensor& out)) {
  refuse("rotary parts, quantised inputs or sinks", {&query_rope, &key_rope, &scale_q, &scale_k, &scale_v, &sink});
  TORCH_CHECK(query_lengths.empty(), "attention over packed sequences is not emulated");
  Attention attention{scale, keep_prob, pre, next, heads, layout, sparse_mode, pse_type, pse, drop_mask, hidden};
  attention.drop_mask = own_mask(drop_mask, query, key, attention, seed, offset);
  attention.forward(query, key, value, row_max, row_sum, out);
}
ACLNN(aclnnFlashAttentionScoreGradV4,
      (const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, const MaybeTensor& pse,
       const MaybeTensor& drop_mask, const MaybeTensor&, const MaybeTensor& hidden, const Tensor& row_max,
       const Tensor& row_sum, const MaybeTensor&, const MaybeTensor&, const MaybeTensor& sink,
       const MaybeTensor& query_rope, const MaybeTensor& key_rope, const MaybeTensor& scale_q,
       const MaybeTensor& scale_k, const MaybeTensor& scale_v, const MaybeTensor& scale_dy, const MaybeTensor& scale_o,
       const Ints&, const Ints& query_lengths, const Ints&, const Ints&, const Ints&, double scale, double keep_prob,
       int64_t pre, int64_t next, int64_t heads, const char* layout, const char*, int64_t, int64_t sparse_mode,
       int64_t pse_type, int64_t seed, int64_t offset, int64_t, Tensor& dq, Tensor& dk, Tensor& dv, const MaybeTensor&,
       const MaybeTensor&, const MaybeTensor& dpse, const MaybeTensor&)) {
  refuse("rotary parts, quantised inputs or sinks",
         {&query_rope, &key_rope, &scale_q, &scale_k, &scale_v, &scale_dy, &scale_o, &sink});
  TORCH_CHECK(query_lengths.empty(), "attention over packed sequences is not emulated");
  Attention attention{scale, keep_prob, pre, next, heads, layout, sparse_mode, pse_type, pse, drop_mask, hidden};
  attention.drop_mask = own_mask(drop_mask, query, key, attention, seed, offset);
  attention.backward(query, key, value, grad, row_max, row_sum, dq, dk, dv, dpse);
}

// ---- rotary embedding; CANN's mode is 0: halves, 1: interleaved pairs
// -------------------------------------------------
namespace {
Tensor rotated(const Tensor& x, int64_t mode) {
  TORCH_CHECK(mode == 0 || mode == 1, "rotary mode ", mode, " is not emulated, only half (0) and interleave (1)");
  if (mode == 0) {
    const auto half = x.chunk(2, -1);
    return at::cat({-half[1], half[0]}, -1);
  }
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}
}  // namespace
ACLNN(aclnnRotaryPositionEmbeddingV2, (const Tensor& self, const Tensor& cos, const Tensor& sin, int64_t mode,
                                       const MaybeTensor& rotate, Tensor& out)) {
  TORCH_CHECK(!rotate, "rotation by a given matrix is not emulated");
  out.copy_(self * cos + rotated(self, mode) * sin);
}
ACLNN(aclnnRotaryPositionEmbeddingGrad,
      (const Tensor& grad, const Tensor& cos, const Tensor& sin, const MaybeTensor& self, int64_t mode, Tensor& dx,
       Tensor& dcos, Tensor& dsin)) {
  dx.copy_(grad * cos - rotated(grad * sin, mode));  // the rotation is skew-symmetric
  if (!self) return;
  dcos.copy_(at::sum_to(grad * *self, dcos.sizes()));
  dsin.copy_(at::sum_to(grad * rotated(*self, mode), dsin.sizes()));
}
