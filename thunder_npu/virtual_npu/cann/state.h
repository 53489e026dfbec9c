// What every part of the virtual NPU shares: errors, faults, the log, device memory, live acl objects.
// Stand-in for the state inside the CANN libraries; all of it is host memory. Nothing here knows ATen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "acl/acl.h"

// No exception crosses extern "C": torch_npu's and Python's frames beyond it cannot catch one. The body of every
// exported function is a function-try-block:  VNPU_API aclError aclXxx(…) try { … } VNPU_CATCH
#define VNPU_API extern "C" __attribute__((visibility("default")))
#define VNPU_CATCH \
  catch (...) { return ::vnpu::Caught{::vnpu::caught()}; }
#define VNPU_CATCH_VOID \
  catch (...) { ::vnpu::caught(); }

namespace vnpu {

// Error codes by their numbers in CANN's acl/error_codes and aclnn documentation.
constexpr int kInvalidParam = 107000;
constexpr int kInvalidDevice = 107001;
constexpr int kNoContext = 107002;
constexpr int kOutOfMemory = 207001;
constexpr int kFeatureNotSupported = 207000;
constexpr int kBadAlloc = 200000;
constexpr int kInternalError = 500000;
constexpr int kNotEmulated = 500003;
constexpr int kDeviceLost = 507010;  // "the task scheduler loses the heartbeat"
constexpr int kAicoreException = 507015;
constexpr int kAclnnInvalidParam = 161002;
constexpr int kAclnnInnerError = 561103;

// Keeps the text for aclGetRecentErrMsg and returns the code.
int fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// In a handler: keeps the exception's text for aclGetRecentErrMsg and returns its code, kBadAlloc or kInternalError.
int caught() noexcept;
// What a function returns after an exception: the code where it returns one, else null or zero.
struct Caught {
  int code;
  operator int() const { return code; }
  operator aclDataType() const { return ACL_DT_UNDEFINED; }
  operator aclFormat() const { return ACL_FORMAT_UNDEFINED; }
  operator size_t() const { return 0; }
  template <class T>
  operator T*() const {
    return nullptr;
  }
};
// A line in the file of VIRTUAL_NPU_LOG, if there is one.
bool logging();
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));
int64_t now_ns();  // CLOCK_MONOTONIC, the clock of Python's time.monotonic_ns()

// Device memory ------------------------------------------------------------------------------------------------------
// True when [address, address + bytes) lies within one live allocation of a device.
bool on_device(const void* address, size_t bytes);

// Live acl objects: a pointer that is not one of them means that the caller's argument list differs from ours.
// ---------
void born(const void* object, const char* kind);
bool dead(const void* object, const char* kind);  // false if it was not alive, or of another kind
bool alive(const void* object, const char* kind);
size_t live_objects();  // of operators' descriptors; not streams and events, which torch_npu makes when it likes

// Operators ----------------------------------------------------------------------------------------------------------
struct Operator {
  explicit Operator(const char* name);
  const char* const name;
  std::atomic<uint64_t> calls{0};
  const Operator* const next;  // all operators form a list
};

// Faults on demand ---------------------------------------------------------------------------------------------------
// Takes one fault of this operator if there is one; sets the error text and returns its code, else 0.
int injected_fault(const char* operator_name);
// kDeviceLost with its text if this thread's device is lost, else 0. Every runtime call asks first.
int device_lost();

// The record of calls ------------------------------------------------------------------------------------------------
bool recording();
void record(const Operator& op, int64_t start_ns, int64_t end_ns, std::string json_arguments);

}  // namespace vnpu
