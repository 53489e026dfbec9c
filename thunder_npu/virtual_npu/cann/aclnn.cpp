// acl objects (aclCreateXxx, aclDestroyXxx), their views as ATen tensors, and the launch of an operator.
#include "aclnn.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>

namespace vnpu {

const char kTensor[] = "aclTensor", kScalar[] = "aclScalar", kIntArray[] = "aclIntArray",
           kFloatArray[] = "aclFloatArray", kBoolArray[] = "aclBoolArray", kTensorList[] = "aclTensorList",
           kScalarList[] = "aclScalarList";
static const char kExecutor[] = "aclOpExecutor";

struct DataType {
  aclDataType acl;
  ScalarType aten;
  const char* name;  // PyTorch's
};
static const DataType kDataTypes[] = {
    {ACL_FLOAT, at::kFloat, "float32"},
    {ACL_FLOAT16, at::kHalf, "float16"},
    {ACL_BF16, at::kBFloat16, "bfloat16"},
    {ACL_DOUBLE, at::kDouble, "float64"},
    {ACL_INT8, at::kChar, "int8"},
    {ACL_INT16, at::kShort, "int16"},
    {ACL_INT32, at::kInt, "int32"},
    {ACL_INT64, at::kLong, "int64"},
    {ACL_UINT8, at::kByte, "uint8"},
    {ACL_UINT16, at::kUInt16, "uint16"},
    {ACL_UINT32, at::kUInt32, "uint32"},
    {ACL_UINT64, at::kUInt64, "uint64"},
    {ACL_BOOL, at::kBool, "bool"},
    {ACL_COMPLEX64, at::kComplexFloat, "complex64"},
    {ACL_COMPLEX128, at::kComplexDouble, "complex128"},
    {ACL_COMPLEX32, at::kComplexHalf, "complex32"},
    {ACL_FLOAT8_E5M2, at::kFloat8_e5m2, "float8_e5m2"},
    {ACL_FLOAT8_E4M3FN, at::kFloat8_e4m3fn, "float8_e4m3fn"},
};

ScalarType scalar_type(aclDataType type) {
  if (type == ACL_DT_UNDEFINED) return ScalarType::Undefined;
  for (const auto& entry : kDataTypes)
    if (entry.acl == type) return entry.aten;
  TORCH_CHECK(false, "data type ", static_cast<int>(type), " is not emulated");
}

const char* dtype_name(ScalarType type) {
  for (const auto& entry : kDataTypes)
    if (entry.aten == type) return entry.name;
  return "undefined";
}

void need(const void* object, const char* kind) {
  TORCH_CHECK(object, "an argument that must be an ", kind, " is null");
  TORCH_CHECK(alive(object, kind), "an argument is no live ", kind,
              ": this operator's signature here differs from torch_npu's");
}

Tensor view(const aclTensor* tensor) {
  need(tensor, kTensor);
  const auto options = at::TensorOptions(scalar_type(tensor->dtype));
  const auto item = static_cast<int64_t>(options.dtype().itemsize());
  int64_t first = tensor->offset, last = tensor->offset;
  bool empty = false;
  for (size_t axis = 0; axis < tensor->dims.size(); ++axis) {
    empty |= tensor->dims[axis] == 0;
    const int64_t reach = (tensor->dims[axis] - 1) * tensor->strides[axis];
    (reach < 0 ? first : last) += reach;
  }
  if (empty) return at::empty_strided(tensor->dims, tensor->strides, options);
  TORCH_CHECK(on_device(static_cast<char*>(tensor->data) + first * item, (last - first + 1) * item), "a ",
              dtype_name(options.dtype().toScalarType()), " tensor of shape ", IntArrayRef(tensor->dims), ", strides ",
              IntArrayRef(tensor->strides), " at ", tensor->data, " is not within one device allocation");
  return at::from_blob(static_cast<char*>(tensor->data) + tensor->offset * item, tensor->dims, tensor->strides,
                       options);
}

void DynamicOut::set(const Tensor& result) const {
  TORCH_CHECK(result.numel() <= room.numel(), "the output has room for ", room.numel(), " elements, not ",
              result.numel());
  room.narrow(0, 0, result.numel()).copy_(result.reshape({-1}));
  object->dims = result.sizes().vec();
  object->strides = result.contiguous().strides().vec();
}

Tensor wrapped(const Scalar& value) { return at::native::wrapped_scalar_tensor(value); }

void put(const Tensor& out, const Tensor& result) { out.copy_(result.reshape(out.sizes())); }

void put(const MaybeTensor& out, const Tensor& result) {
  if (out && out->numel() && result.defined()) put(*out, result);
}

Tensor dropout_bits(const Tensor& mask, int64_t numel) {
  const Tensor shifts = at::tensor({0, 1, 2, 3, 4, 5, 6, 7}, at::kByte);
  const Tensor bits = at::bitwise_and(at::bitwise_right_shift(mask.reshape({-1, 1}), shifts), 1);
  return bits.reshape({-1}).narrow(0, 0, numel).to(at::kBool);
}

int plan_failed(const Operator& op, const char* what) { return fail(kAclnnInvalidParam, "%s: %s", op.name, what); }

void adopt(aclOpExecutor* executor) { born(executor, kExecutor); }

int launch(aclOpExecutor* executor) {
  if (!dead(executor, kExecutor)) return fail(kAclnnInnerError, "launch of %p, which is no executor", executor);
  const std::unique_ptr<aclOpExecutor> owned(executor);
  Operator& op = executor->op;
  if (int code = device_lost()) return code;
  if (int code = injected_fault(op.name)) return code;
  const bool watched = recording() || logging();
  std::string arguments = watched ? executor->arguments() : std::string();
  const int64_t start = watched ? now_ns() : 0;
  try {
    // The caller is a kernel of the npu backend: whatever autograd, autocast, functorch or Python modes it runs under
    // have had their turn. Only the CPU backend is left to dispatch to; BackendSelect is for factory functions.
    c10::impl::ForceDispatchKeyGuard cpu_only(
        c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
        c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    executor->run();
  } catch (const c10::Error& error) {
    return fail(kAclnnInnerError, "%s: %s", op.name, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(kAclnnInnerError, "%s: %s", op.name, error.what());
  }
  op.calls.fetch_add(1, std::memory_order_relaxed);
  if (logging()) log("%s %s", op.name, arguments.c_str());
  if (recording()) record(op, start, now_ns(), std::move(arguments));
  return ACL_SUCCESS;
}

std::string json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string json(const Scalar& value) {
  if (value.isBoolean()) return json(value.toBool());
  if (value.isIntegral(false)) return json(value.toLong());
  if (value.isComplex()) return json_list(std::array{value.toComplexDouble().real(), value.toComplexDouble().imag()});
  return json(value.toDouble());
}

std::string json(const char* value) { return value ? "\"" + std::string(value) + "\"" : "null"; }

std::string json(const Tensor& value) {
  if (!value.defined()) return "null";
  return std::string("{\"dtype\":\"") + dtype_name(value.scalar_type()) + "\",\"shape\":" + json(value.sizes().vec()) +
         "}";
}

}  // namespace vnpu

using namespace vnpu;

template <class T>
static T* made(T* object, const char* kind) {
  std::unique_ptr<T> owned(object);
  born(object, kind);
  return owned.release();
}

template <class T>
static int destroyed(const T* object, const char* kind) {
  if (!object) return ACL_SUCCESS;
  if (!dead(object, kind)) return fail(kAclnnInvalidParam, "destroy of %p, which is no live %s", object, kind);
  delete object;
  return ACL_SUCCESS;
}

VNPU_API aclTensor* aclCreateTensor(const int64_t* dims, uint64_t rank, aclDataType dtype, const int64_t* strides,
                                    int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) try {
  auto* tensor = new aclTensor{{dims, dims + rank}, Ints(rank, 1), offset, dtype, data};
  if (strides)
    tensor->strides.assign(strides, strides + rank);
  else
    for (size_t axis = rank; axis-- > 1;) tensor->strides[axis - 1] = tensor->strides[axis] * dims[axis];
  return made(tensor, kTensor);
} VNPU_CATCH

VNPU_API aclScalar* aclCreateScalar(void* value, aclDataType dtype) try {
  switch (dtype) {
    case ACL_DOUBLE:
      return made(new aclScalar{*static_cast<double*>(value)}, kScalar);
    case ACL_FLOAT:
      return made(new aclScalar{*static_cast<float*>(value)}, kScalar);
    case ACL_INT64:
      return made(new aclScalar{*static_cast<int64_t*>(value)}, kScalar);
    case ACL_INT32:
      return made(new aclScalar{*static_cast<int32_t*>(value)}, kScalar);
    case ACL_BOOL:
      return made(new aclScalar{*static_cast<bool*>(value)}, kScalar);
    case ACL_COMPLEX128:
      return made(new aclScalar{*static_cast<c10::complex<double>*>(value)}, kScalar);
    case ACL_FLOAT16:
      return made(new aclScalar{static_cast<float>(*static_cast<at::Half*>(value))}, kScalar);
    case ACL_BF16:
      return made(new aclScalar{static_cast<float>(*static_cast<at::BFloat16*>(value))}, kScalar);
    default:
      fail(kAclnnInvalidParam, "a scalar of data type %d is not emulated", static_cast<int>(dtype));
      return nullptr;
  }
} VNPU_CATCH

#define ARRAY(KIND, ELEMENT)                                                                 \
  VNPU_API acl##KIND* aclCreate##KIND(ELEMENT const* values, uint64_t size) try {            \
    return made(new acl##KIND{decltype(acl##KIND::values)(values, values + size)}, k##KIND); \
  } VNPU_CATCH
ARRAY(IntArray, int64_t)
ARRAY(FloatArray, float)
ARRAY(BoolArray, bool)
ARRAY(TensorList, aclTensor const*)
ARRAY(ScalarList, aclScalar const*)

VNPU_API int aclDestroyTensor(const aclTensor* object) try { return destroyed(object, kTensor); } VNPU_CATCH
VNPU_API int aclDestroyScalar(const aclScalar* object) try { return destroyed(object, kScalar); } VNPU_CATCH
VNPU_API int aclDestroyIntArray(const aclIntArray* object) try { return destroyed(object, kIntArray); } VNPU_CATCH
VNPU_API int aclDestroyFloatArray(const aclFloatArray* object) try { return destroyed(object, kFloatArray); } VNPU_CATCH
VNPU_API int aclDestroyBoolArray(const aclBoolArray* object) try { return destroyed(object, kBoolArray); } VNPU_CATCH

VNPU_API int aclDestroyTensorList(const aclTensorList* list) try {  // takes its elements along
  if (list && alive(list, kTensorList))
    for (const auto* tensor : list->values)
      if (int code = destroyed(tensor, kTensor)) return code;
  return destroyed(list, kTensorList);
} VNPU_CATCH

VNPU_API int aclDestroyScalarList(const aclScalarList* list) try {
  if (list && alive(list, kScalarList))
    for (const auto* scalar : list->values)
      if (int code = destroyed(scalar, kScalar)) return code;
  return destroyed(list, kScalarList);
} VNPU_CATCH

// torch_npu frees the array with delete[].
VNPU_API int aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* rank) try {
  if (!alive(tensor, kTensor))
    return fail(kAclnnInvalidParam, "aclGetViewShape of %p, which is no live aclTensor", tensor);
  *rank = tensor->dims.size();
  *dims = new int64_t[tensor->dims.size() + 1];
  std::copy(tensor->dims.begin(), tensor->dims.end(), *dims);
  return ACL_SUCCESS;
} VNPU_CATCH
