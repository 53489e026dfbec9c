// How an aclnn operator is written here:
//
//   ACLNN(aclnnSoftmax, (const Tensor& self, int64_t dim, Tensor& out)) { at::softmax_out(out, self, dim); }
//
// The parameter list is the operator's C signature, with ATen's types in place of acl's; the body is ATen's CPU kernel
// on views of the device memory. The macro exports aclnnSoftmaxGetWorkspaceSize, which turns the acl objects into those
// types, and aclnnSoftmax, which runs the body, counts and records it, and turns an exception into an error code.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "state.h"

struct aclTensor {
  std::vector<int64_t> dims, strides;
  int64_t offset = 0;  // in elements
  aclDataType dtype = ACL_FLOAT;
  void* data = nullptr;
};
struct aclScalar {
  at::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> values;
};
struct aclScalarList {
  std::vector<const aclScalar*> values;
};

// What aclnnXxxGetWorkspaceSize prepares and aclnnXxx consumes.
struct aclOpExecutor {
  explicit aclOpExecutor(vnpu::Operator& op) : op(op) {}
  virtual ~aclOpExecutor() = default;
  virtual void run() = 0;
  virtual std::string arguments() const = 0;  // JSON values, separated by commas
  vnpu::Operator& op;
};

namespace vnpu {

using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using MaybeScalar = std::optional<Scalar>;
using Ints = std::vector<int64_t>;
using MaybeInts = std::optional<Ints>;
using Floats = std::vector<float>;
using Tensors = std::vector<Tensor>;
using Scalars = std::vector<Scalar>;

// An output whose shape the operator decides; torch_npu reads it back with aclGetViewShape.
struct DynamicOut {
  aclTensor* object;
  Tensor room;  // the memory, as a 1-D tensor
  void set(const Tensor& result) const;
};

// A view of device memory; throws if the object is dead, or reaches outside one allocation.
Tensor view(const aclTensor* tensor);
ScalarType scalar_type(aclDataType type);
const char* dtype_name(ScalarType type);
int launch(aclOpExecutor* executor);
int plan_failed(const Operator& op, const char* what);
void adopt(aclOpExecutor* executor);

// ---- helpers of the operators' bodies ----
// A Python number in an operator for tensors: it does not decide the result's dtype.
Tensor wrapped(const Scalar& value);
// Rounds a result into an output that ATen's out= would refuse for its dtype or shape.
void put(const Tensor& out, const Tensor& result);
void put(const MaybeTensor& out, const Tensor& result);  // unless the output is absent or empty
// Bytes of bits, lowest first, 1 with probability 1 - p, padded to a multiple of 128 bits.
Tensor draw_dropout_mask(int64_t numel, double p, uint64_t seed, uint64_t offset);
// The first `numel` of such bits, as bool; 1 keeps an element.
Tensor dropout_bits(const Tensor& mask, int64_t numel);

extern const char kTensor[], kScalar[], kIntArray[], kFloatArray[], kBoolArray[], kTensorList[], kScalarList[];
void need(const void* object, const char* kind);           // throws unless alive
inline bool given(const void* object, const char* kind) {  // false for null, throws for a wrong pointer
  if (object) need(object, kind);
  return object != nullptr;
}

// ---- one C argument: its type in the ABI, its value, and its JSON in the record ----
std::string json(const Tensor& value);
std::string json(const Scalar& value);
std::string json(double value);
std::string json(const char* value);
inline std::string json(float value) { return json(static_cast<double>(value)); }
inline std::string json(bool value) { return value ? "true" : "false"; }
inline std::string json(ScalarType value) { return json(dtype_name(value)); }
inline std::string json(const DynamicOut& value) { return json(value.room); }
template <class T>
std::enable_if_t<std::is_integral_v<T>, std::string> json(T value) {
  return std::to_string(value);
}
template <class T>
std::string json(const std::vector<T>& values);
template <class T>
std::string json(const std::optional<T>& value) {
  return value ? json(*value) : "null";
}
template <class T>
std::string json_list(const T& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : ",") + json(value);
  return "[" + text + "]";
}
template <class T>
std::string json(const std::vector<T>& values) {
  return json_list(values);
}
template <size_t N>
std::string json(const std::array<bool, N>& values) {
  return json_list(values);
}

template <class T>
struct Argument {  // numbers and strings pass as they are
  static_assert(std::is_arithmetic_v<T> || std::is_same_v<T, const char*>, "no such argument type in aclnn");
  using Abi = T;
  static T read(T value) { return value; }
};
template <>
struct Argument<ScalarType> {
  using Abi = aclDataType;
  static ScalarType read(Abi type) { return scalar_type(type); }
};
template <>
struct Argument<Tensor> {
  using Abi = const aclTensor*;
  static Tensor read(Abi tensor) { return view(tensor); }
};
template <>
struct Argument<MaybeTensor> {
  using Abi = const aclTensor*;
  static MaybeTensor read(Abi tensor) { return tensor ? MaybeTensor(view(tensor)) : std::nullopt; }
};
template <>
struct Argument<DynamicOut> {
  using Abi = aclTensor*;
  static DynamicOut read(Abi tensor) { return {tensor, view(tensor).view({-1})}; }
};
template <>
struct Argument<Scalar> {
  using Abi = const aclScalar*;
  static Scalar read(Abi scalar) {
    need(scalar, kScalar);
    return scalar->value;
  }
};
template <>
struct Argument<MaybeScalar> {
  using Abi = const aclScalar*;
  static MaybeScalar read(Abi scalar) { return given(scalar, kScalar) ? MaybeScalar(scalar->value) : std::nullopt; }
};
template <>
struct Argument<Ints> {
  using Abi = const aclIntArray*;
  static Ints read(Abi array) { return given(array, kIntArray) ? array->values : Ints{}; }
};
template <>
struct Argument<MaybeInts> {
  using Abi = const aclIntArray*;
  static MaybeInts read(Abi array) { return given(array, kIntArray) ? MaybeInts(array->values) : std::nullopt; }
};
template <>
struct Argument<Floats> {
  using Abi = const aclFloatArray*;
  static Floats read(Abi array) { return given(array, kFloatArray) ? array->values : Floats{}; }
};
template <size_t N>
struct Argument<std::array<bool, N>> {
  using Abi = const aclBoolArray*;
  static std::array<bool, N> read(Abi array) {
    need(array, kBoolArray);
    TORCH_CHECK(array->values.size() == N, "an aclBoolArray of ", N, " was expected, not ", array->values.size());
    std::array<bool, N> result;
    std::copy(array->values.begin(), array->values.end(), result.begin());
    return result;
  }
};
template <>
struct Argument<Tensors> {  // torch_npu passes null for an empty list; an element may be null too
  using Abi = const aclTensorList*;
  static Tensors read(Abi list) {
    Tensors result;
    if (given(list, kTensorList))
      for (const auto* tensor : list->values) result.push_back(tensor ? view(tensor) : Tensor());
    return result;
  }
};
template <>
struct Argument<Scalars> {
  using Abi = const aclScalarList*;
  static Scalars read(Abi list) {
    Scalars result;
    if (given(list, kScalarList))
      for (const auto* scalar : list->values) result.push_back(Argument<Scalar>::read(scalar));
    return result;
  }
};

// ---- one call, shared by all operators of the same signature ----
template <class... A>
struct Executor final : aclOpExecutor {
  using Body = void (*)(A...);
  Executor(Operator& op, Body body, typename Argument<std::decay_t<A>>::Abi... values)
      : aclOpExecutor(op), body(body), values{Argument<std::decay_t<A>>::read(values)...} {}
  void run() override { std::apply(body, values); }
  std::string arguments() const override {
    std::string text;
    std::apply([&](const auto&... value) { ((text += (text.empty() ? "" : ",") + json(value)), ...); }, values);
    return text;
  }
  Body body;
  std::tuple<std::decay_t<A>...> values;
};

template <class... A>
int plan(Operator& op, void (*body)(A...), uint64_t* workspace, aclOpExecutor** executor,
         typename Argument<std::decay_t<A>>::Abi... values) {
  if (int code = device_lost()) return code;
  try {
    *workspace = 0;
    auto fresh = std::make_unique<Executor<A...>>(op, body, values...);
    adopt(fresh.get());
    *executor = fresh.release();
    return ACL_SUCCESS;
  } catch (const std::exception& error) {
    return plan_failed(op, error.what());
  }
}

template <auto body, auto& op>
struct Entry;
template <class... A, void (*body)(A...), Operator& op>
struct Entry<body, op> {
  static int get_workspace_size(typename Argument<std::decay_t<A>>::Abi... values, uint64_t* workspace,
                                aclOpExecutor** executor) try {
    return plan<A...>(op, body, workspace, executor, values...);
  } VNPU_CATCH
};

}  // namespace vnpu

// The exported aclnnXxxGetWorkspaceSize has a signature that only the template knows, so it is an ifunc: the dynamic
// linker asks the resolver for the address when torch_npu looks the symbol up.
#define ACLNN(NAME, PARAMETERS)                                                                                \
  static void NAME##_body PARAMETERS;                                                                          \
  static vnpu::Operator NAME##_operator(#NAME);                                                                \
  extern "C" {                                                                                                 \
  static void* NAME##_resolver() {                                                                             \
    return reinterpret_cast<void*>(&vnpu::Entry<&NAME##_body, NAME##_operator>::get_workspace_size);           \
  }                                                                                                            \
  __attribute__((visibility("default"), ifunc(#NAME "_resolver"))) int NAME##GetWorkspaceSize();               \
  __attribute__((visibility("default"))) int NAME(void*, uint64_t, aclOpExecutor* executor, aclrtStream) try { \
    return vnpu::launch(executor);                                                                             \
  } VNPU_CATCH                                                                                                 \
  }                                                                                                            \
  static void NAME##_body PARAMETERS
