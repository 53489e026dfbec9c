// Errors, faults, log, live objects, and the record of calls, with the C functions by which Python reaches them.
#include "state.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

namespace vnpu {
namespace {

// Everything with a destructor is leaked on purpose: torch_npu calls in after static destructors have begun.
template <class T>
T& leaked() {
  static T* value = new T;
  return *value;
}

struct Call {
  const char* name;
  int64_t start_ns, end_ns;
  std::string arguments;
};

struct Record {
  std::mutex mutex;
  std::deque<Call> calls;
  uint64_t first = 0;  // number of calls[0] since the start of the process
};

struct Faults {
  std::mutex mutex;
  std::map<std::string, int64_t> left;  // operator name -> how often it still fails; -1: until cleared
};

struct Objects {
  std::mutex mutex;
  std::unordered_map<const void*, const char*> kind;
};

std::atomic<int> recorders{0};
std::atomic<bool> any_operator_fault{false};
std::atomic<const Operator*> operators{nullptr};

FILE* log_file() {
  static FILE* file = [] {
    const char* path = std::getenv("VIRTUAL_NPU_LOG");
    if (!path || !*path) return static_cast<FILE*>(nullptr);
    return std::strcmp(path, "-") == 0 ? stderr : std::fopen(path, "a");
  }();
  return file;
}

std::string& recent_error() {
  thread_local std::string* text = new std::string;
  return *text;
}

char* owned(const std::string& text) { return ::strdup(text.c_str()); }

}  // namespace

int fail(int code, const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  recent_error() = std::string("[virtual NPU] ") + text;
  log("error %d: %s", code, text);
  return code;
}

int caught() noexcept {
  int code = kInternalError;
  try {
    try {
      throw;
    } catch (const std::bad_alloc& error) {
      code = kBadAlloc;
      return fail(code, "the host's memory is exhausted: %s", error.what());
    } catch (const std::exception& error) {
      return fail(code, "an exception in the virtual NPU: %s", error.what());
    } catch (...) {
      return fail(code, "an exception of unknown type in the virtual NPU");
    }
  } catch (...) {  // not even the text could be kept
    return code;
  }
}

bool logging() { return log_file() != nullptr; }

void log(const char* format, ...) {
  FILE* file = log_file();
  if (!file) return;
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::fprintf(file, "%s\n", line);
  std::fflush(file);
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void born(const void* object, const char* kind) {
  auto& objects = leaked<Objects>();
  std::lock_guard lock(objects.mutex);
  objects.kind.emplace(object, kind);
}

bool dead(const void* object, const char* kind) {
  auto& objects = leaked<Objects>();
  std::lock_guard lock(objects.mutex);
  auto found = objects.kind.find(object);
  if (found == objects.kind.end() || found->second != kind) return false;
  objects.kind.erase(found);
  return true;
}

bool alive(const void* object, const char* kind) {
  auto& objects = leaked<Objects>();
  std::lock_guard lock(objects.mutex);
  auto found = objects.kind.find(object);
  return found != objects.kind.end() && found->second == kind;
}

size_t live_objects() {
  auto& objects = leaked<Objects>();
  std::lock_guard lock(objects.mutex);
  size_t count = 0;
  for (const auto& [object, kind] : objects.kind) count += std::strncmp(kind, "aclrt", 5) != 0;
  return count;
}

Operator::Operator(const char* name) : name(name), next(operators.load()) { operators = this; }

int injected_fault(const char* name) {
  if (!any_operator_fault.load(std::memory_order_relaxed)) return 0;
  auto& faults = leaked<Faults>();
  std::lock_guard lock(faults.mutex);
  auto found = faults.left.find(name);
  if (found == faults.left.end() || found->second == 0) return 0;
  if (found->second > 0) --found->second;
  return fail(kAicoreException, "%s: fault injected, the AI core stopped with an exception", name);
}

bool recording() { return recorders.load(std::memory_order_relaxed) > 0; }

void record(const Operator& op, int64_t start_ns, int64_t end_ns, std::string json_arguments) {
  auto& record = leaked<Record>();
  std::lock_guard lock(record.mutex);
  record.calls.push_back({op.name, start_ns, end_ns, std::move(json_arguments)});
}

}  // namespace vnpu

using namespace vnpu;

VNPU_API const char* aclGetRecentErrMsg() try { return recent_error().c_str(); } VNPU_CATCH

// For the generated stubs: everything that the wheel mentions and nobody implements.
extern "C" int vnpu_not_emulated(const char* name) try {
  return fail(kNotEmulated, "%s is not emulated", name);
} VNPU_CATCH

VNPU_API void vnpu_free(void* text) try { std::free(text); } VNPU_CATCH_VOID

VNPU_API void vnpu_record(int change) try {
  auto& record = leaked<Record>();
  std::lock_guard lock(record.mutex);
  if ((recorders += change) == 0) {
    record.first += record.calls.size();
    record.calls.clear();
  }
} VNPU_CATCH_VOID

VNPU_API uint64_t vnpu_event_count() try {
  auto& record = leaked<Record>();
  std::lock_guard lock(record.mutex);
  return record.first + record.calls.size();
} VNPU_CATCH

// One JSON array a line: name, start, end, arguments.
VNPU_API char* vnpu_events(uint64_t from) try {
  auto& record = leaked<Record>();
  std::lock_guard lock(record.mutex);
  std::string text;
  for (uint64_t i = from < record.first ? 0 : from - record.first; i < record.calls.size(); ++i) {
    const auto& call = record.calls[i];
    text += "[\"" + std::string(call.name) + "\"," + std::to_string(call.start_ns) + "," + std::to_string(call.end_ns) +
            ",[" + call.arguments + "]]\n";
  }
  return owned(text);
} VNPU_CATCH

VNPU_API char* vnpu_counters() try {
  std::string text = "{";
  for (const Operator* op = operators; op; op = op->next)
    if (uint64_t calls = op->calls)
      text += (text.size() > 1 ? ",\"" : "\"") + std::string(op->name) + "\":" + std::to_string(calls);
  return owned(text + "}");
} VNPU_CATCH

VNPU_API void vnpu_reset_counters() try {
  for (const Operator* op = operators; op; op = op->next) const_cast<Operator*>(op)->calls = 0;
} VNPU_CATCH_VOID

// Names of the emulated operators, one a line.
VNPU_API char* vnpu_operators() try {
  std::string text;
  for (const Operator* op = operators; op; op = op->next) text += std::string(op->name) + "\n";
  return owned(text);
} VNPU_CATCH

VNPU_API void vnpu_fail_operator(const char* name, int64_t times) try {
  auto& faults = leaked<Faults>();
  std::lock_guard lock(faults.mutex);
  faults.left[name] = times;
  any_operator_fault = true;
} VNPU_CATCH_VOID

VNPU_API void vnpu_clear_operator_faults() try {
  auto& faults = leaked<Faults>();
  std::lock_guard lock(faults.mutex);
  faults.left.clear();
  any_operator_fault = false;
} VNPU_CATCH_VOID
