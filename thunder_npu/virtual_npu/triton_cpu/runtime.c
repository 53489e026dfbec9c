/* What a Triton-Ascend kernel compiled for the CPU needs at run time: scratch memory, strided copies, and the loop over
 * the programs of a launch, spread over threads. Knows nothing of Python, Triton or torch. Plain C11 and POSIX threads.
 *
 * Scratch memory stands for the unified buffer. It is handed out filled with 0xff bytes, which is NaN in every floating
 * type, so that a value read from outside a mask, or from a buffer that was never written, shows in the result. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- scratch -----------------------------------------------------------------------------------------------------
 * Blocks are kept per thread and handed out again: a tile loop allocates and frees the same few sizes all the time, and
 * going through malloc would map and unmap pages for every tile of 128 KiB or more. */

enum { ALIGNMENT = 64, CACHED_BLOCKS = 32 };

typedef struct { uint64_t capacity, size; } header;
static _Thread_local header *cached[CACHED_BLOCKS];
static atomic_int_least64_t live_bytes;

void *thunder_npu_scratch(uint64_t size) {
  header *block = 0;
  for (int i = 0; i < CACHED_BLOCKS; i++)
    if (cached[i] && cached[i]->capacity >= size && cached[i]->capacity <= 2 * size + 4096) {
      block = cached[i];
      cached[i] = 0;
      break;
    }
  if (!block) {
    uint64_t capacity = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (posix_memalign((void **)&block, ALIGNMENT, ALIGNMENT + capacity)) {
      fprintf(stderr, "thunder_npu: no memory for %llu bytes of kernel scratch\n", (unsigned long long)size);
      abort();
    }
    block->capacity = capacity;
  }
  block->size = size;
  atomic_fetch_add_explicit(&live_bytes, (int64_t)size, memory_order_relaxed);
  return memset((char *)block + ALIGNMENT, 0xff, size);
}

void thunder_npu_scratch_free(void *pointer) {
  if (!pointer) return;
  header *block = (header *)((char *)pointer - ALIGNMENT);
  atomic_fetch_sub_explicit(&live_bytes, (int64_t)block->size, memory_order_relaxed);
  for (int i = 0; i < CACHED_BLOCKS; i++)
    if (!cached[i]) {
      cached[i] = block;
      return;
    }
  free(block);
}

/* Scratch bytes handed out and not given back; zero between launches. */
int64_t thunder_npu_scratch_live(void) { return atomic_load(&live_bytes); }

/* ---- the launch that is running ---------------------------------------------------------------------------------- */

/* The memory that an argument may touch; the pointer itself lies anywhere in it. */
typedef struct { char *pointer, *begin, *end; } storage;

typedef void (*entry)(const void *arguments, int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t x, int32_t y,
                      int32_t z);

static struct {
  entry function;
  const void *arguments;
  const storage *storages; /* one for every argument slot */
  int64_t slots;
  int32_t grid[3];
  int64_t programs;
  atomic_int_least64_t next;
} job;

static _Thread_local int32_t program[3];

/* ---- access to global memory ---------------------------------------------------------------------------------------
 * Outside the storages of the arguments, reads give 0xff bytes and writes are dropped; the first such write is kept. */

typedef struct { int64_t argument, offset, bytes, program[3]; } stray_store; /* offset: from the storage's begin */
static stray_store stray;
static atomic_int strays;

static int inside(int64_t argument, const char *from, int64_t bytes) {
  return from >= job.storages[argument].begin && from + bytes <= job.storages[argument].end;
}

static void note_stray_store(int64_t argument, const char *to, int64_t bytes) {
  if (atomic_fetch_add(&strays, 1)) return;
  stray = (stray_store){argument, to - job.storages[argument].begin, bytes, {program[0], program[1], program[2]}};
}

void *thunder_npu_load(void *from, int32_t argument, int64_t bytes) {
  static const char poison[16] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  return inside(argument, from, bytes) ? from : (void *)poison;
}

void *thunder_npu_store(void *to, int32_t argument, int64_t bytes) {
  static _Thread_local char discarded[16];
  if (inside(argument, to, bytes)) return to;
  note_stray_store(argument, to, bytes);
  return discarded;
}

/* Copies the part of [from, from + bytes) that is inside on both sides; a negative argument is scratch memory. */
void thunder_npu_copy(char *to, int32_t to_argument, const char *from, int32_t from_argument, int64_t bytes) {
  int64_t first = 0, end = bytes;
  if (from_argument >= 0) {
    const storage *s = &job.storages[from_argument];
    if (s->begin - from > first) first = s->begin - from;
    if (s->end - from < end) end = s->end - from;
  }
  if (to_argument >= 0 && end > first) {
    const storage *s = &job.storages[to_argument];
    if (!inside(to_argument, to + first, end - first)) note_stray_store(to_argument, to + first, end - first);
    if (s->begin - to > first) first = s->begin - to;
    if (s->end - to < end) end = s->end - to;
  }
  if (end > first) memcpy(to + first, from + first, end - first);
}

/* What MLIR's memref.copy calls, as memrefCopy, when an operand is strided. */

typedef struct { int64_t rank; void *descriptor; } unranked;

/* The argument whose pointer a descriptor was made of, or -1. */
static int32_t argument_of(const int64_t *descriptor) {
  for (int32_t i = 0; i < job.slots; i++)
    if (job.storages[i].pointer == (char *)descriptor[0]) return i;
  return -1;
}

void thunder_npu_copy_strided(int64_t element_size, unranked *source, unranked *target) {
  int64_t rank = source->rank, index[16] = {0};
  int64_t *s = source->descriptor, *t = target->descriptor; /* allocated, aligned, offset, sizes[rank], strides[rank] */
  char *from = (char *)s[1] + s[2] * element_size, *to = (char *)t[1] + t[2] * element_size;
  int64_t *sizes = s + 3, *from_strides = s + 3 + rank, *to_strides = t + 3 + rank;
  int32_t from_argument = argument_of(s), to_argument = argument_of(t);
  for (int64_t i = 0; i < rank; i++)
    if (sizes[i] <= 0) return;
  int64_t run = element_size; /* bytes of the innermost contiguous run */
  while (rank && (sizes[rank - 1] == 1 || (from_strides[rank - 1] * element_size == run &&
                                           to_strides[rank - 1] * element_size == run)))
    run *= sizes[--rank];
  for (;;) {
    int64_t from_offset = 0, to_offset = 0, axis = rank - 1;
    for (int64_t i = 0; i < rank; i++) from_offset += index[i] * from_strides[i], to_offset += index[i] * to_strides[i];
    thunder_npu_copy(to + to_offset * element_size, to_argument, from + from_offset * element_size, from_argument, run);
    while (axis >= 0 && ++index[axis] == sizes[axis]) index[axis--] = 0;
    if (axis < 0) return;
  }
}

/* ---- launches ----------------------------------------------------------------------------------------------------
 * The calling thread runs programs itself and workers join when they wake, so a short launch never waits for a thread
 * that has not started. Workers live as long as the process; a forked child starts its own. */

static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static int workers, seats, running; /* started; still wanted by the open job; running it now */
static pid_t owner;

static void run_programs(void) {
  int64_t i;
  while ((i = atomic_fetch_add(&job.next, 1)) < job.programs) {
    program[0] = (int32_t)(i % job.grid[0]);
    program[1] = (int32_t)(i / job.grid[0] % job.grid[1]);
    program[2] = (int32_t)(i / job.grid[0] / job.grid[1]);
    job.function(job.arguments, job.grid[0], job.grid[1], job.grid[2], program[0], program[1], program[2]);
  }
}

static void *work(void *unused) {
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!seats) pthread_cond_wait(&opened, &lock);
    seats--, running++;
    pthread_mutex_unlock(&lock);
    run_programs();
    pthread_mutex_lock(&lock);
    if (!--running) pthread_cond_signal(&left);
  }
  return unused;
}

/* Threads do not survive fork, and a lock may have been held: the child begins anew. */
static void after_fork(void) {
  workers = seats = running = 0;
  pthread_mutex_init(&one_launch, 0);
  pthread_mutex_init(&lock, 0);
  pthread_cond_init(&opened, 0);
  pthread_cond_init(&left, 0);
}

/* Runs every program of the grid, x fastest, on up to `threads` threads. Returns how many stores were outside their
 * argument's storage, and the first of them in *first. */
int32_t thunder_npu_launch(entry function, const void *arguments, const storage *storages, int64_t slots,
                           int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t threads, stray_store *first) {
  int64_t programs = (int64_t)grid_x * grid_y * grid_z;
  if (programs <= 0) return 0;
  pthread_mutex_lock(&one_launch);
  if (owner != getpid()) {
    if (!owner) pthread_atfork(0, 0, after_fork);
    owner = getpid();
  }
  job.function = function, job.arguments = arguments, job.programs = programs;
  job.storages = storages, job.slots = slots;
  atomic_store(&strays, 0);
  job.grid[0] = grid_x, job.grid[1] = grid_y, job.grid[2] = grid_z;
  atomic_store(&job.next, 0);
  int wanted = programs < threads ? (int)programs - 1 : threads - 1;
  if (wanted > 0) {
    pthread_mutex_lock(&lock);
    for (pthread_t thread; workers < wanted && !pthread_create(&thread, 0, work, 0); workers++) pthread_detach(thread);
    seats = wanted;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
  }
  run_programs();
  if (wanted > 0) {
    pthread_mutex_lock(&lock);
    seats = 0;
    while (running) pthread_cond_wait(&left, &lock);
    pthread_mutex_unlock(&lock);
  }
  int32_t found = atomic_load(&strays);
  *first = stray;
  pthread_mutex_unlock(&one_launch);
  return found;
}

/* ---- tl.device_print: one line a value, in the form Triton prints on a GPU ---------------------------------------- */

static void print_head(const char *prefix, int32_t rank, int64_t index) {
  printf("pid (%d, %d, %d)", program[0], program[1], program[2]);
  if (rank) printf(" idx (%lld)", (long long)index);
  printf("%s", prefix);
}

void thunder_npu_print_float(const char *prefix, int32_t rank, int64_t index, double value) {
  flockfile(stdout);
  print_head(prefix, rank, index);
  printf("%g\n", value);
  fflush(stdout);
  funlockfile(stdout);
}

void thunder_npu_print_integer(const char *prefix, int32_t rank, int64_t index, int64_t value, int32_t base) {
  flockfile(stdout);
  print_head(prefix, rank, index);
  printf(base == 16 ? "0x%llx\n" : "%lld\n", (long long)value);
  fflush(stdout);
  funlockfile(stdout);
}
