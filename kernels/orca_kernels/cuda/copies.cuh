// Asynchronous copies from global to shared memory (PTX ISA, "cp.async"), 16 bytes per thread. A thread may read its
// own copies after `await_copies`; copies of other threads need a barrier after that.
#pragma once

// Four words of a lane, copied and read at once.
struct alignas(16) Words {
  unsigned word[4];
};

// Copies past the L1 cache: a multiprocessor reads keys and values once.
__device__ inline void copy_async(Words *to, const Words *from) {
#ifdef ORCA_EMULATED
  emulated_copy_async(to, from, sizeof(Words));
#else
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
#endif
}

// Ends a group of copies, which may be empty.
__device__ inline void commit_copies() {
#ifdef ORCA_EMULATED
  emulated_commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all groups of this thread but the `kPending` latest.
template <int kPending>
__device__ inline void await_copies() {
#ifdef ORCA_EMULATED
  emulated_await_copies(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}
