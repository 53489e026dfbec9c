// CANN's older graph-mode operators ("aclop"): descriptors are accepted, execution is refused. torch_npu falls back to
// them when it finds no aclnn symbol for an operator, and the generated stubs see to it that it always finds one.
#include <string>
#include <vector>

#include "acl/acl_op_compiler.h"
#include "state.h"

using namespace vnpu;

struct aclTensorDesc {
  aclDataType type;
  std::vector<int64_t> dims;
  aclFormat format;
};

struct aclDataBuffer {
  void* data;
  size_t bytes;
};

struct aclopAttr {};

VNPU_API aclTensorDesc* aclCreateTensorDesc(aclDataType type, int rank, const int64_t* dims, aclFormat format) {
  return new aclTensorDesc{type, std::vector<int64_t>(dims, dims + rank), format};
}
VNPU_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
VNPU_API aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc->type; }
VNPU_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc->format; }
VNPU_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc->dims.size(); }
VNPU_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
  *size = desc->dims.at(index);
  return ACL_SUCCESS;
}
VNPU_API void aclSetTensorDescName(aclTensorDesc*, const char*) {}
VNPU_API aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
  desc->format = format;
  return ACL_SUCCESS;
}
VNPU_API aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }
VNPU_API aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
VNPU_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) { return new aclDataBuffer{data, bytes}; }
VNPU_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return ACL_SUCCESS;
}

VNPU_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
VNPU_API void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }

#define ATTRIBUTE(NAME, ...) \
  VNPU_API aclError aclopSetAttr##NAME(aclopAttr*, const char*, __VA_ARGS__) { return ACL_SUCCESS; }
ATTRIBUTE(Bool, uint8_t)
ATTRIBUTE(Int, int64_t)
ATTRIBUTE(Float, float)
ATTRIBUTE(String, const char*)
ATTRIBUTE(DataType, aclDataType)
ATTRIBUTE(ListBool, int, const uint8_t*)
ATTRIBUTE(ListInt, int, const int64_t*)
ATTRIBUTE(ListFloat, int, const float*)
ATTRIBUTE(ListListInt, int, const int*, const int64_t* const*)

static int refuse(const char* name) {
  return fail(kNotEmulated, "the graph-mode operator %s is not emulated, only aclnn operators are", name);
}

VNPU_API aclError aclopCompileAndExecute(const char* name, int, const aclTensorDesc* const*,
                                         const aclDataBuffer* const*, int, const aclTensorDesc* const*,
                                         aclDataBuffer* const*, const aclopAttr*, aclopEngineType, aclopCompileType,
                                         const char*, aclrtStream) {
  return refuse(name);
}

VNPU_API aclError aclopCompileAndExecuteV2(const char* name, int, aclTensorDesc**, aclDataBuffer**, int,
                                           aclTensorDesc**, aclDataBuffer**, aclopAttr*, aclopEngineType,
                                           aclopCompileType, const char*, aclrtStream) {
  return refuse(name);
}
