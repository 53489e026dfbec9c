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

VNPU_API aclTensorDesc* aclCreateTensorDesc(aclDataType type, int rank, const int64_t* dims, aclFormat format) try {
  return new aclTensorDesc{type, std::vector<int64_t>(dims, dims + rank), format};
} VNPU_CATCH
VNPU_API void aclDestroyTensorDesc(const aclTensorDesc* desc) try { delete desc; } VNPU_CATCH_VOID
VNPU_API aclDataType aclGetTensorDescType(const aclTensorDesc* desc) try { return desc->type; } VNPU_CATCH
VNPU_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) try { return desc->format; } VNPU_CATCH
VNPU_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) try { return desc->dims.size(); } VNPU_CATCH
VNPU_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) try {
  *size = desc->dims.at(index);
  return ACL_SUCCESS;
} VNPU_CATCH
VNPU_API void aclSetTensorDescName(aclTensorDesc*, const char*) try {
} VNPU_CATCH_VOID
VNPU_API aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) try {
  desc->format = format;
  return ACL_SUCCESS;
} VNPU_CATCH
VNPU_API aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) try {
  return new aclDataBuffer{data, bytes};
} VNPU_CATCH
VNPU_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) try {
  delete buffer;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclopAttr* aclopCreateAttr() try { return new aclopAttr; } VNPU_CATCH
VNPU_API void aclopDestroyAttr(const aclopAttr* attributes) try { delete attributes; } VNPU_CATCH_VOID

#define ATTRIBUTE(NAME, ...) \
  VNPU_API aclError aclopSetAttr##NAME(aclopAttr*, const char*, __VA_ARGS__) try { return ACL_SUCCESS; } VNPU_CATCH
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
                                         const char*, aclrtStream) try {
  return refuse(name);
} VNPU_CATCH

VNPU_API aclError aclopCompileAndExecuteV2(const char* name, int, aclTensorDesc**, aclDataBuffer**, int,
                                           aclTensorDesc**, aclDataBuffer**, aclopAttr*, aclopEngineType,
                                           aclopCompileType, const char*, aclrtStream) try {
  return refuse(name);
} VNPU_CATCH
