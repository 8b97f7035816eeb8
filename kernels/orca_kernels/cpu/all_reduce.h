// All-reduce over the ranks of one worker through shared memory instead of sockets.
//
// The memory begins with a cache line per rank: its process id (written by shared_sum.py; kGone after the rank has left)
// and the number of rounds that it has entered. Two buffers per rank follow, used alternately: after all ranks have
// entered round n, a rank may overwrite its buffer of round n - 1, because every rank had read it before. Every rank
// adds all buffers in the order of ranks, so the results are bitwise equal.
#pragma once

#include <signal.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <chrono>

#include "vector.h"

namespace orca {

constexpr int64_t kLine = 64;  // bytes of a cache line: each rank writes to its own
constexpr int kSpins = 2000;   // before a waiting rank yields the core

enum Lost : int64_t { kLate = -1, kDead = -2, kLeft = -3 };

constexpr int64_t kGone = -1;  // in place of a process id

struct Entered {
  std::atomic<int64_t> process, rounds;
};

inline Entered *entered(char *memory, int64_t rank) { return reinterpret_cast<Entered *>(memory + rank * kLine); }

// Waits as rank `self` until `rank` has entered `round`; returns 0, kLate, kDead, or kLeft if one of both has left.
inline int64_t await(char *memory, int64_t self, int64_t rank, int64_t round,
                     std::chrono::steady_clock::time_point deadline) {
  Entered *own = entered(memory, self), *other = entered(memory, rank);
  for (int64_t spin = 1; other->rounds.load(std::memory_order_acquire) < round; ++spin) {
    if (spin % kSpins) continue;
    sched_yield();
    const int64_t process = other->process.load(std::memory_order_acquire);
    if (process == kGone || own->process.load(std::memory_order_acquire) == kGone) return kLeft;
    if (process && kill(static_cast<pid_t>(process), 0) && errno == ESRCH) return kDead;
    if (std::chrono::steady_clock::now() > deadline) return kLate;
  }
  return 0;
}

// Sums x [count] in place; returns the number of the last round, or an error of `await`.
template <typename T>
int64_t all_reduce(T *x, int64_t count, char *memory, int64_t rank, int64_t size, int64_t capacity, int64_t round,
                   double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                               std::chrono::duration<double>(seconds));
  const int64_t most = capacity / static_cast<int64_t>(sizeof(T));
  for (int64_t first = 0; first < count; first += most) {
    const int64_t part = count - first < most ? count - first : most;
    char *buffers = memory + size * kLine + round % 2 * size * capacity;
    std::memcpy(buffers + rank * capacity, x + first, part * sizeof(T));
    entered(memory, rank)->rounds.store(++round, std::memory_order_release);
    for (int64_t other = 0; other < size; ++other) {
      if (const int64_t lost = await(memory, rank, other, round, deadline)) return lost;
    }
    int64_t i = 0;
    for (; i + kLanes <= part; i += kLanes) {
      Floats total{};
      for (int64_t other = 0; other < size; ++other) {
        total += load(reinterpret_cast<const T *>(buffers + other * capacity) + i);
      }
      store(x + first + i, total);
    }
    for (; i < part; ++i) {
      float total = 0;
      for (int64_t other = 0; other < size; ++other) {
        total += scalar(reinterpret_cast<const T *>(buffers + other * capacity)[i]);
      }
      put(x + first + i, total);
    }
  }
  return round;
}

}  // namespace orca
