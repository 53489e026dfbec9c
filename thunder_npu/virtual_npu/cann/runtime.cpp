// The CANN runtime on host memory: devices, contexts, memory, streams, events. Work is done when it is submitted, on
// the calling thread, so a stream is always idle and an event has happened once it is recorded.
#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "acl/acl_op_compiler.h"
#include "state.h"

using namespace vnpu;

namespace {

constexpr int kMaxDevices = 64;
constexpr int kHost = -1;
constexpr size_t kAlignment = 512;         // CANN aligns device memory to 512 bytes
constexpr int kPoison = 0xFF;              // NaN in every float type, -1 in every integer type
constexpr int64_t kL2Bytes = 192ll << 20;  // Atlas A2

struct Block {
  size_t bytes;
  int device;
};

struct Usage {
  size_t in_use = 0, peak = 0;
  uint64_t allocations = 0;
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block> blocks;
  std::array<Usage, kMaxDevices> usage;
  size_t limit = 0;
};

struct Stream {
  int32_t id;
};

struct Event {
  std::atomic<int64_t> recorded_ns{0};
};

struct Context {
  int device;
};

thread_local int this_device = -1;
std::atomic<int> next_stream{1};
std::array<std::atomic<bool>, kMaxDevices> lost{};
std::atomic<int64_t> allocations_to_fail{0};  // -1: all, until cleared
int64_t system_parameters[64];

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

int devices() {
  static const int count = static_cast<int>(std::clamp<int64_t>(setting("VIRTUAL_NPU_DEVICES", 1), 1, kMaxDevices));
  return count;
}

Memory& memory() {
  static Memory* value = [] {
    auto* fresh = new Memory;
    fresh->limit = static_cast<size_t>(setting("VIRTUAL_NPU_MEMORY", 64ll << 30));
    return fresh;
  }();
  return *value;
}

int current_device() { return this_device < 0 ? 0 : this_device; }

// The block that holds `address`, or end().
auto block_of(Memory& all, const void* address) {
  auto after = all.blocks.upper_bound(static_cast<const char*>(address));
  if (after == all.blocks.begin()) return all.blocks.end();
  auto block = std::prev(after);
  return static_cast<const char*>(address) < block->first + block->second.bytes ? block : all.blocks.end();
}

int allocate(void** result, size_t bytes, int device) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment + (bytes == 0 ? kAlignment : 0);
  auto& all = memory();
  if (device != kHost) {
    if (int64_t left = allocations_to_fail; left != 0) {
      if (left > 0) --allocations_to_fail;
      return fail(kOutOfMemory, "out of memory: fault injected (device %d, %zu bytes asked)", device, bytes);
    }
    std::lock_guard lock(all.mutex);
    auto& usage = all.usage[device];
    if (usage.in_use + rounded > all.limit)
      return fail(kOutOfMemory, "out of memory on device %d: %zu bytes asked, %zu of %zu in use", device, bytes,
                  usage.in_use, all.limit);
    usage.in_use += rounded;
    usage.peak = std::max(usage.peak, usage.in_use);
    ++usage.allocations;
  }
  void* fresh = std::aligned_alloc(kAlignment, rounded);
  if (fresh) std::memset(fresh, kPoison, rounded);
  std::lock_guard lock(all.mutex);
  if (!fresh) {
    if (device != kHost) all.usage[device].in_use -= rounded;
    return fail(kOutOfMemory, "the host has no %zu bytes for device %d", rounded, device);
  }
  all.blocks[static_cast<const char*>(fresh)] = {rounded, device};
  *result = fresh;
  log("malloc device=%d bytes=%zu", device, bytes);
  return ACL_SUCCESS;
}

int release(void* address, bool device) {
  auto& all = memory();
  {
    std::lock_guard lock(all.mutex);
    auto block = all.blocks.find(static_cast<const char*>(address));
    if (block == all.blocks.end() || (block->second.device != kHost) != device)
      return fail(kInvalidParam, "free of %p, which is no live %s allocation", address, device ? "device" : "host");
    if (device) all.usage[block->second.device].in_use -= block->second.bytes;
    all.blocks.erase(block);
  }
  std::free(address);
  return ACL_SUCCESS;
}

// Copies and fills check that the device side of the range is device memory.
int checked_device_range(const char* what, const void* address, size_t bytes) {
  if (bytes == 0 || on_device(address, bytes)) return ACL_SUCCESS;
  return fail(kInvalidParam, "%s: [%p, +%zu) is not within one device allocation", what, address, bytes);
}

}  // namespace

bool vnpu::on_device(const void* address, size_t bytes) {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  auto block = block_of(all, address);
  return block != all.blocks.end() && block->second.device != kHost &&
         static_cast<const char*>(address) + bytes <= block->first + block->second.bytes;
}

int vnpu::device_lost() {
  const int device = current_device();
  if (!lost[device].load(std::memory_order_relaxed)) return 0;
  return fail(kDeviceLost, "device %d is lost: the task scheduler lost its heartbeat", device);
}

#define ALIVE_OR_RETURN() \
  if (int code = device_lost()) return code

// ---- hooks for Python -----------------------------------------------------------------------------------------------
VNPU_API char* vnpu_memory() try {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  std::string text = "{\"limit\":" + std::to_string(all.limit) + ",\"acl_objects\":" + std::to_string(live_objects()) +
                     ",\"devices\":[";
  for (int device = 0; device < devices(); ++device) {
    const auto& usage = all.usage[device];
    text += (device ? ",{" : "{") + ("\"in_use\":" + std::to_string(usage.in_use)) +
            ",\"peak\":" + std::to_string(usage.peak) + ",\"allocations\":" + std::to_string(usage.allocations) + "}";
  }
  return ::strdup((text + "]}").c_str());
} VNPU_CATCH

VNPU_API void vnpu_reset_peak() try {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  for (auto& usage : all.usage) usage.peak = usage.in_use;
} VNPU_CATCH_VOID

VNPU_API void vnpu_set_memory_limit(uint64_t bytes) try {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  all.limit = bytes;
} VNPU_CATCH_VOID

VNPU_API void vnpu_fail_allocations(int64_t times) try { allocations_to_fail = times; } VNPU_CATCH_VOID
VNPU_API void vnpu_set_lost(int device, int is_lost) try { lost.at(device) = is_lost != 0; } VNPU_CATCH_VOID

// ---- process, devices, contexts -------------------------------------------------------------------------------------
VNPU_API aclError aclInit(const char*) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclFinalize() try { return ACL_SUCCESS; } VNPU_CATCH

VNPU_API void aclAppLog(aclLogLevel level, const char* function, const char* file, uint32_t line, const char* format,
                        ...) try {
  static const int threshold = static_cast<int>(setting("ASCEND_GLOBAL_LOG_LEVEL", 4));
  if (static_cast<int>(level) < threshold) return;
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "[acl %d] %s:%u %s: ", static_cast<int>(level), file, line, function);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
} VNPU_CATCH_VOID

VNPU_API const char* aclrtGetSocName() try {
  static const char* name = std::getenv("VIRTUAL_NPU_SOC");
  return name && *name ? name : "Ascend910B2";
} VNPU_CATCH

VNPU_API aclError aclrtGetDeviceCount(uint32_t* count) try {
  *count = static_cast<uint32_t>(devices());
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtSetDevice(int32_t device) try {
  if (device < 0 || device >= devices())
    return fail(kInvalidDevice, "device %d does not exist, there are %d", device, devices());
  this_device = device;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetDevice(int32_t* device) try {
  if (this_device < 0) return kNoContext;  // torch_npu takes this code as "no device set on this thread yet"
  *device = this_device;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtResetDevice(int32_t device) try {
  if (device < 0 || device >= devices()) return fail(kInvalidDevice, "device %d does not exist", device);
  lost[device] = false;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetCurrentContext(aclrtContext* context) try {
  static auto* contexts = [] {
    auto* all = new std::array<Context, kMaxDevices>;
    for (int device = 0; device < kMaxDevices; ++device) (*all)[device].device = device;
    return all;
  }();
  if (this_device < 0) return kNoContext;
  *context = &(*contexts)[this_device];
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtSetCurrentContext(aclrtContext context) try {
  if (context) this_device = static_cast<Context*>(context)->device;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) try {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) try {
  *can = device != peer;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) try { return ACL_SUCCESS; } VNPU_CATCH

VNPU_API aclError aclrtSynchronizeDevice() try {
  ALIVE_OR_RETURN();
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t) try { return aclrtSynchronizeDevice(); } VNPU_CATCH

static int64_t cores(const char* kind) {
  return setting(std::strcmp(kind, "cube") == 0 ? "VIRTUAL_NPU_CUBE_CORES" : "VIRTUAL_NPU_VECTOR_CORES",
                 std::strcmp(kind, "cube") == 0 ? 24 : 48);
}

VNPU_API aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) try {
  switch (what) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
      *value = cores("cube");
      break;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
      *value = cores("vector");
      break;
    case ACL_DEVICE_INFO_L2_SIZE:
      *value = kL2Bytes;
      break;
    default:
      return fail(kFeatureNotSupported, "device capability %d is not emulated", static_cast<int>(what));
  }
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr what, int64_t* value) try {
  switch (what) {
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
      *value = cores("cube");
      break;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      *value = cores("vector");
      break;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = static_cast<int64_t>(memory().limit);
      break;
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      *value = kL2Bytes;
      break;
    default:
      return fail(kFeatureNotSupported, "device attribute %d is not emulated", static_cast<int>(what));
  }
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) try {
  *value = static_cast<uint32_t>(cores(type == ACL_RT_DEV_RES_CUBE_CORE ? "cube" : "vector"));
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t* value) try {
  return aclrtGetResInCurrentThread(type, value);
} VNPU_CATCH

VNPU_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) try {
  std::memset(version, 0, sizeof *version);
  std::strcpy(version->version, "8.5.0");
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclsysGetVersionStr(char*, char* version) try {
  std::strcpy(version, "8.5.0");
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclGetCannAttribute(aclCannAttr, int32_t* value) try {
  *value = 1;  // the only attribute asked for is INF_NAN: overflow gives inf and NaN, not saturation
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtPeekAtLastError(aclrtLastErrLevel) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclrtGetLastError(aclrtLastErrLevel) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclrtSetOpExecuteTimeOut(uint32_t) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclrtSetOpWaitTimeout(uint32_t) try { return ACL_SUCCESS; } VNPU_CATCH

VNPU_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual) try {
  if (actual) *actual = timeout;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclSetCompileopt(aclCompileOpt, const char*) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API size_t aclGetCompileoptSize(aclCompileOpt) try { return 8; } VNPU_CATCH

VNPU_API aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) try {
  std::snprintf(value, length, "disable");
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) try {
  if (static_cast<unsigned>(option) < 64) system_parameters[option] = value;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) try {
  *value = static_cast<unsigned>(option) < 64 ? system_parameters[option] : 0;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) try {
  return aclrtSetSysParamOpt(option, value);
} VNPU_CATCH

// ---- memory ---------------------------------------------------------------------------------------------------------
VNPU_API aclError aclrtMalloc(void** result, size_t bytes, aclrtMemMallocPolicy) try {
  ALIVE_OR_RETURN();
  return allocate(result, bytes, current_device());
} VNPU_CATCH

VNPU_API aclError aclrtMallocAlign32(void** result, size_t bytes, aclrtMemMallocPolicy policy) try {
  return aclrtMalloc(result, bytes, policy);
} VNPU_CATCH

VNPU_API aclError aclrtFree(void* address) try { return release(address, true); } VNPU_CATCH
VNPU_API aclError aclrtMallocHost(void** result, size_t bytes) try { return allocate(result, bytes, kHost); } VNPU_CATCH
VNPU_API aclError aclrtFreeHost(void* address) try { return release(address, false); } VNPU_CATCH

VNPU_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) try {
  ALIVE_OR_RETURN();
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  const size_t used = all.usage[current_device()].in_use;
  *total = all.limit;
  *free = all.limit > used ? all.limit - used : 0;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind) try {
  ALIVE_OR_RETURN();
  if (bytes > room) return fail(kInvalidParam, "aclrtMemcpy of %zu bytes into room for %zu", bytes, room);
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (to_device)
    if (int code = checked_device_range("aclrtMemcpy destination", to, bytes)) return code;
  if (from_device)
    if (int code = checked_device_range("aclrtMemcpy source", from, bytes)) return code;
  std::memmove(to, from, bytes);
  log("memcpy %s->%s bytes=%zu", from_device ? "device" : "host", to_device ? "device" : "host", bytes);
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind,
                                   aclrtStream) try {
  return aclrtMemcpy(to, room, from, bytes, kind);
} VNPU_CATCH

VNPU_API aclError aclrtMemset(void* address, size_t room, int32_t value, size_t bytes) try {
  ALIVE_OR_RETURN();
  if (bytes > room) return fail(kInvalidParam, "aclrtMemset of %zu bytes into room for %zu", bytes, room);
  if (int code = checked_device_range("aclrtMemset", address, bytes)) return code;
  std::memset(address, value, bytes);
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtMemsetAsync(void* address, size_t room, int32_t value, size_t bytes, aclrtStream) try {
  return aclrtMemset(address, room, value, bytes);
} VNPU_CATCH

VNPU_API aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) try {
  std::memset(attributes, 0, sizeof *attributes);
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  auto block = block_of(all, address);
  if (block == all.blocks.end()) {
    attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  } else if (block->second.device == kHost) {
    attributes->location.type = ACL_MEM_LOCATION_TYPE_HOST;
  } else {
    attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    attributes->location.id = static_cast<uint32_t>(block->second.device);
  }
  return ACL_SUCCESS;
} VNPU_CATCH

// ---- streams --------------------------------------------------------------------------------------------------------
static const char kStream[] = "aclrtStream";
static const char kEvent[] = "aclrtEvent";

static int checked_stream(aclrtStream stream) {
  ALIVE_OR_RETURN();
  if (!stream || alive(stream, kStream)) return ACL_SUCCESS;  // null: the default stream
  return fail(kInvalidParam, "%p is no live stream", stream);
}

VNPU_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) try {
  ALIVE_OR_RETURN();
  *stream = new Stream{next_stream++};
  born(*stream, kStream);
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtCreateStream(aclrtStream* stream) try {
  return aclrtCreateStreamWithConfig(stream, 0, 0);
} VNPU_CATCH

VNPU_API aclError aclrtDestroyStream(aclrtStream stream) try {
  if (!dead(stream, kStream)) return fail(kInvalidParam, "%p is no live stream", stream);
  delete static_cast<Stream*>(stream);
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtDestroyStreamForce(aclrtStream stream) try { return aclrtDestroyStream(stream); } VNPU_CATCH
VNPU_API aclError aclrtSynchronizeStream(aclrtStream stream) try { return checked_stream(stream); } VNPU_CATCH
VNPU_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) try {
  return checked_stream(stream);
} VNPU_CATCH
VNPU_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) try { return ACL_SUCCESS; } VNPU_CATCH
VNPU_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) try { return ACL_SUCCESS; } VNPU_CATCH

VNPU_API aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* flag) try {
  *flag = 0;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) try {
  *status = ACL_STREAM_STATUS_COMPLETE;
  return checked_stream(stream);
} VNPU_CATCH

VNPU_API aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) try {
  *id = stream ? static_cast<Stream*>(stream)->id : 0;
  return checked_stream(stream);
} VNPU_CATCH

VNPU_API aclError aclmdlRICaptureGetInfo(aclrtStream, aclmdlRICaptureStatus* status, aclmdlRI* model) try {
  if (status) *status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  if (model) *model = nullptr;
  return ACL_SUCCESS;
} VNPU_CATCH

// ---- events ---------------------------------------------------------------------------------------------------------
static int checked_event(aclrtEvent event) {
  ALIVE_OR_RETURN();
  return alive(event, kEvent) ? ACL_SUCCESS : fail(kInvalidParam, "%p is no live event", event);
}

VNPU_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) try {
  ALIVE_OR_RETURN();
  *event = new Event;
  born(*event, kEvent);
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) try {
  return aclrtCreateEventExWithFlag(event, flag);
} VNPU_CATCH

VNPU_API aclError aclrtDestroyEvent(aclrtEvent event) try {
  if (!dead(event, kEvent)) return fail(kInvalidParam, "%p is no live event", event);
  delete static_cast<Event*>(event);
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) try {
  if (int code = checked_stream(stream)) return code;
  if (int code = checked_event(event)) return code;
  static_cast<Event*>(event)->recorded_ns = now_ns();
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtResetEvent(aclrtEvent event, aclrtStream) try {
  if (int code = checked_event(event)) return code;
  static_cast<Event*>(event)->recorded_ns = 0;
  return ACL_SUCCESS;
} VNPU_CATCH

VNPU_API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) try {
  if (int code = checked_stream(stream)) return code;
  return checked_event(event);
} VNPU_CATCH

VNPU_API aclError aclrtSynchronizeEvent(aclrtEvent event) try { return checked_event(event); } VNPU_CATCH

VNPU_API aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) try {
  *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return checked_event(event);
} VNPU_CATCH

VNPU_API aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) try {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return checked_event(event);
} VNPU_CATCH

VNPU_API aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) try {
  if (int code = checked_event(start)) return code;
  if (int code = checked_event(end)) return code;
  const int64_t from = static_cast<Event*>(start)->recorded_ns, to = static_cast<Event*>(end)->recorded_ns;
  if (!from || !to) return fail(kInvalidParam, "elapsed time of an event that was not recorded");
  *milliseconds = static_cast<float>(static_cast<double>(to - from) * 1e-6);
  return ACL_SUCCESS;
} VNPU_CATCH
