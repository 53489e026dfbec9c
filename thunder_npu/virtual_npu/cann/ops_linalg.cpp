// Matrix products and linear algebra. CANN's last argument of a product, the cube math type, chooses a lower precision
// for the matrix unit; the products here keep the input's.
#include "aclnn.h"

using namespace vnpu;

ACLNN(aclnnMatmul, (const Tensor& self, const Tensor& other, Tensor& out, int8_t)) { at::matmul_out(out, self, other); }
ACLNN(aclnnMm, (const Tensor& self, const Tensor& other, Tensor& out, int8_t)) { at::mm_out(out, self, other); }
ACLNN(aclnnBatchMatMul, (const Tensor& self, const Tensor& other, Tensor& out, int8_t)) {
  at::bmm_out(out, self, other);
}
ACLNN(aclnnMv, (const Tensor& self, const Tensor& vec, Tensor& out, int8_t)) { at::mv_out(out, self, vec); }
ACLNN(aclnnDot, (const Tensor& self, const Tensor& other, Tensor& out)) { out.copy_(at::dot(self, other)); }
ACLNN(aclnnAddmm, (const Tensor& self, const Tensor& one, const Tensor& two, const Scalar& beta, const Scalar& alpha,
                   Tensor& out, int8_t)) {
  at::addmm_out(out, self, one, two, beta, alpha);
}
ACLNN(aclnnInplaceAddmm,
      (Tensor& self, const Tensor& one, const Tensor& two, const Scalar& beta, const Scalar& alpha, int8_t)) {
  at::addmm_out(self, self, one, two, beta, alpha);
}
ACLNN(aclnnAddmv, (const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& alpha, const Scalar& beta,
                   Tensor& out, int8_t)) {
  at::addmv_out(out, self, mat, vec, beta, alpha);
}
ACLNN(aclnnAddr, (const Tensor& self, const Tensor& one, const Tensor& two, const Scalar& beta, const Scalar& alpha,
                  Tensor& out)) {
  at::addr_out(out, self, one, two, beta, alpha);
}
ACLNN(aclnnInplaceAddr,
      (Tensor& self, const Tensor& one, const Tensor& two, const Scalar& beta, const Scalar& alpha)) {
  self.addr_(one, two, beta, alpha);
}
ACLNN(aclnnBaddbmm, (const Tensor& self, const Tensor& one, const Tensor& two, const Scalar& beta, const Scalar& alpha,
                     Tensor& out, int8_t)) {
  out.copy_(at::baddbmm(self, one, two, beta, alpha));
}
ACLNN(aclnnAddbmm, (const Tensor& self, const Tensor& one, const Tensor& two, const Scalar& beta, const Scalar& alpha,
                    Tensor& out, int8_t)) {
  at::addbmm_out(out, self, one, two, beta, alpha);
}
ACLNN(aclnnInverse, (const Tensor& self, Tensor& out)) { out.copy_(at::inverse(self)); }
ACLNN(aclnnLinalgCholesky, (const Tensor& self, bool upper, Tensor& out)) {
  out.copy_(at::linalg_cholesky(self, upper));
}
ACLNN(aclnnLinalgCross, (const Tensor& self, const Tensor& other, int64_t dim, Tensor& out)) {
  out.copy_(at::linalg_cross(self, other, dim));
}
ACLNN(aclnnLinalgQr, (const Tensor& self, int64_t mode, Tensor& q, Tensor& r)) {
  constexpr const char* kModes[] = {"reduced", "complete", "r"};
  const auto [Q, R] = at::linalg_qr(self, kModes[mode]);
  if (mode != 2) q.copy_(Q);
  r.copy_(R);
}
ACLNN(aclnnSlogdet, (const Tensor& self, Tensor& sign, Tensor& log)) {
  const auto [s, l] = at::slogdet(self);
  sign.copy_(s);
  log.copy_(l);
}
ACLNN(aclnnTriangularSolve,
      (const Tensor& self, const Tensor& a, bool upper, bool transpose, bool unit, Tensor& x, Tensor& m)) {
  const auto [solution, coefficient] = at::triangular_solve(self, a, upper, transpose, unit);
  x.copy_(solution);
  m.copy_(coefficient);
}
ACLNN(aclnnCdist, (const Tensor& one, const Tensor& two, float p, int64_t, Tensor& out)) {
  out.copy_(at::cdist(one, two, p, 2));  // 2: never by a matrix product, whose rounding is not the kernel's
}
ACLNN(aclnnPdist, (const Tensor& self, float p, Tensor& out)) { out.copy_(at::pdist(self, p)); }
