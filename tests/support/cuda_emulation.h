// Runs CUDA sources on a CPU: every thread of a thread block is a fiber. Fibers switch at barriers and shuffles, and
// run in random order in between, so that a missing barrier changes the result. Slow but exact: for tests of kernels on
// machines without a GPU. A fault of a kernel (division by zero, invalid address, undefined behaviour,
// deadlock) ends the launch and is returned as text, so it fails one test, not the process.
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Place {
  int x, y, z;
};
static Place threadIdx, blockIdx, gridDim;

namespace emulation {

constexpr int kWarp = 32;
constexpr size_t kStack = 64 << 10;

// A fiber is started once by its context and resumed by longjmp, which needs no system call. It runs one thread of each
// thread block. After a fault, which stops it in the middle of a kernel, it is restarted.
struct Fiber {
  ucontext_t context;
  jmp_buf here;
  std::vector<char> stack = std::vector<char>(kStack);
  bool begun = false;
};

// State of a fiber; separate from its context, because barriers read the states of all fibers.
struct State {
  bool done = false, waits = false;
  short first = 0, last = 0;  // range of fibers of the barrier at which this fiber waits
};

static std::vector<Fiber> fibers;
static State states[1024];
static ucontext_t unused;
static jmp_buf scheduler;
static void (*body)();
static int current, threads;
static uint64_t exchanged[2][1024];
static unsigned char parity[1024];  // of the exchanges of a fiber, whose arrays alternate: one barrier each is enough

// Asynchronous copies of a thread: of the group that is open, and of groups that it has not waited for.
struct Copy {
  void *to;
  const void *from;
  size_t size;
};
static std::vector<Copy> open_copies[1024];
static std::deque<std::vector<Copy>> copy_groups[1024];

static sigjmp_buf before_launch;
static pthread_t launching;
static char fault[200];

// Ends the launch from any of its fibers.
[[noreturn]] inline void fail(const char *cause) {
  std::snprintf(fault, sizeof fault, "%s in thread %d of block (%d, %d, %d)", cause, current, blockIdx.x, blockIdx.y,
                blockIdx.z);
  siglongjmp(before_launch, 1);
}

inline void on_signal(int number) {
  if (!pthread_equal(pthread_self(), launching)) {  // a fault of another thread of the process
    signal(number, SIG_DFL);
    return;
  }
  fail(number == SIGFPE   ? "integer division by zero or overflow"
       : number == SIGILL ? "undefined behaviour"  // the trap instruction of -fsanitize
                          : "invalid address");
}

// Opens the barrier of fibers [first, last) if each of them waits there or has ended.
inline bool open(int first, int last) {
  for (int i = first; i < last; ++i) {
    const State &state = states[i];
    if (!state.done && !(state.waits && state.first == first && state.last == last)) return false;
  }
  for (int i = first; i < last; ++i) states[i].waits = false;
  return true;
}

inline int warp_begin() { return current / kWarp * kWarp; }
inline int warp_end() { return std::min(warp_begin() + kWarp, threads); }

inline void leave() {
  if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}

inline void enter() {
  for (;;) {
    body();
    for (const auto &group : copy_groups[current]) {
      if (!group.empty()) fail("asynchronous copies that nobody waited for");
    }
    if (!open_copies[current].empty()) fail("asynchronous copies without a group");
    states[current].done = true;
    open(warp_begin(), warp_end());
    open(0, threads);
    leave();
  }
}

inline void resume() {
  if (_setjmp(scheduler)) return;
  Fiber &fiber = fibers[current];
  if (fiber.begun) _longjmp(fiber.here, 1);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = kStack - current % 61 * 64;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
  swapcontext(&unused, &fiber.context);
}

// Waits until all fibers of [first, last) that have not ended wait at this barrier, too.
inline void barrier(int first, int last) {
  State &state = states[current];
  state.waits = true;
  state.first = static_cast<short>(first);
  state.last = static_cast<short>(last);
  if (open(first, last)) return;
  while (state.waits) leave();
}

// xorshift32. <random> and <functional> would be a quarter of the compilation.
struct Generator {
  using result_type = uint32_t;
  uint32_t state = 1;
  static constexpr uint32_t min() { return 1; }
  static constexpr uint32_t max() { return UINT32_MAX; }
  uint32_t operator()() {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
  }
};

inline void run_block(int count) {
  threads = count;
  if (fibers.size() < static_cast<size_t>(count)) fibers.resize(count);
  std::fill(states, states + count, State());
  std::fill(parity, parity + count, 0);
  for (int i = 0; i < count; ++i) {
    open_copies[i].clear();
    copy_groups[i].clear();
  }
  static Generator generator;
  static std::vector<int> order;
  order.resize(count);
  std::iota(order.begin(), order.end(), 0);
  for (bool left = true; left;) {
    bool moved = left = false;
    std::shuffle(order.begin(), order.end(), generator);
    for (const int next : order) {
      current = next;
      if (states[current].done) continue;
      left = true;
      if (states[current].waits) continue;
      moved = true;
      threadIdx = {current, 0, 0};
      resume();
    }
    if (left && !moved) fail("deadlock at a barrier");
  }
}

template <typename... Arguments, size_t... I>
void run(void (*kernel)(Arguments...), void **arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<Arguments> *>(arguments[I])...);
}

// Returns null, or a description of the fault that ended the launch.
template <typename... Arguments>
const char *launch(void (*kernel)(Arguments...), int x, int y, int z, int count, void **arguments) {
  static const int signals[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS};
  static struct sigaction before[4];
  static void (*launched)(Arguments...);
  static void **values;
  launched = kernel;
  values = arguments;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  launching = pthread_self();
  gridDim = {x, y, z};
  fault[0] = 0;
  for (int i = 0; i < 4; ++i) sigaction(signals[i], &action, &before[i]);
  if (!sigsetjmp(before_launch, 1)) {
    body = [] { run(launched, values, std::index_sequence_for<Arguments...>{}); };
    for (blockIdx.z = 0; blockIdx.z < z; ++blockIdx.z) {
      for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) run_block(count);
      }
    }
  }
  for (int i = 0; i < 4; ++i) sigaction(signals[i], &before[i], nullptr);
  if (fault[0]) {
    for (Fiber &fiber : fibers) fiber.begun = false;
  }
  return fault[0] ? fault : nullptr;
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::barrier(0, emulation::threads);
}
inline void __syncwarp() { emulation::barrier(emulation::warp_begin(), emulation::warp_end()); }
namespace emulation {

// Returns the value that lane `from` of the warp passes, to a lane outside of the warp its own.
template <typename Value>
Value exchange(Value value, int from) {
  uint64_t *values = exchanged[parity[current] ^= 1];
  std::memcpy(values + current, &value, sizeof value);
  __syncwarp();
  if (from >= 0 && from < kWarp) std::memcpy(&value, values + warp_begin() + from, sizeof value);
  return value;
}

}  // namespace emulation

template <typename Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
  return emulation::exchange(value, (emulation::current % 32) ^ mask);
}
template <typename Value>
Value __shfl_up_sync(unsigned, Value value, int delta) {
  return emulation::exchange(value, emulation::current % 32 - delta);
}
template <typename Value>
Value __shfl_sync(unsigned, Value value, int lane) {
  return emulation::exchange(value, lane);
}

// Fibers switch at barriers only, so every operation is atomic.
inline unsigned atomicAdd(unsigned *place, unsigned value) { return std::exchange(*place, *place + value); }
inline unsigned atomicOr(unsigned *place, unsigned value) { return std::exchange(*place, *place | value); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// Asynchronous copies (PTX ISA, "cp.async"), 16 bytes each. From its start until its thread waits for its group, a copy may
// write at any time. So the destination is filled with bytes that are NaN at once, and has the source's content of the time
// of the wait after it, not earlier. Other threads see that after a barrier, as they see any other write.
inline void emulated_copy_async(void *to, const void *from, size_t size) {
  if (reinterpret_cast<uintptr_t>(to) % size || reinterpret_cast<uintptr_t>(from) % size) {
    emulation::fail("misaligned asynchronous copy");
  }
  std::memset(to, 0xff, size);
  emulation::open_copies[emulation::current].push_back({to, from, size});
}
inline void emulated_commit_copies() {
  emulation::copy_groups[emulation::current].push_back(std::move(emulation::open_copies[emulation::current]));
  emulation::open_copies[emulation::current].clear();
}
inline void emulated_await_copies(size_t pending) {
  auto &groups = emulation::copy_groups[emulation::current];
  for (; groups.size() > pending; groups.pop_front()) {
    for (const emulation::Copy &copy : groups.front()) std::memcpy(copy.to, copy.from, copy.size);
  }
}

// Tensor-core product by a warp, c [16, 8] += a [16, 16] b [16, 8]. Each lane has its part as defined by the PTX ISA
// ("Matrix Fragments for mma.m16n8k16 with floating point type"): a word is two adjacent elements of a row of a, or
// of a column of b, the first in its low half.
template <typename Widen>
__attribute__((no_sanitize("undefined"))) inline void emulated_multiply(float (&c)[4], const unsigned (&a)[4],
                                                                        const unsigned (&b)[2], Widen widen) {
  static float rows[1024 / 32][16][16], columns[1024 / 32][8][16];  // per warp: a, and b transposed
  const int first = emulation::warp_begin(), lane = emulation::current - first;
  float(&own_rows)[16][16] = rows[first / 32];
  float(&own_columns)[8][16] = columns[first / 32];
  for (int half = 0; half < 2; ++half) {
    const int k = lane % 4 * 2 + half;
    for (int word = 0; word < 4; ++word) {
      own_rows[lane / 4 + word % 2 * 8][k + word / 2 * 8] = widen(static_cast<uint16_t>(a[word] >> 16 * half));
    }
    for (int word = 0; word < 2; ++word) {
      own_columns[lane / 4][k + word * 8] = widen(static_cast<uint16_t>(b[word] >> 16 * half));
    }
  }
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const float *row = own_rows[lane / 4 + (i < 2 ? 0 : 8)], *column = own_columns[lane % 4 * 2 + i % 2];
    for (int k = 0; k < 16; ++k) c[i] += row[k] * column[k];
  }
  __syncwarp();
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __fdividef(float dividend, float divisor) { return dividend / divisor; }
inline float rsqrtf(float value) { return 1 / std::sqrt(value); }
inline float emulated_half_to_float(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return half;
}
inline uint16_t emulated_float_to_half(float value) {
  const _Float16 half = value;
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

#define ORCA_EMULATE(kernel)                                                                     \
  extern "C" const char *emulate_##kernel(int x, int y, int z, int threads, void **arguments) { \
    return emulation::launch(kernel, x, y, z, threads, arguments);                              \
  }
