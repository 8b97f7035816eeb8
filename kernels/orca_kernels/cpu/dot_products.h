// Whether the processor's dot products of bfloat16 are faster than products of the widened floats. A dot product does the
// work of two fused multiplications and additions. On AMD's Zen 4 it takes the time of one; on Intel's Golden Cove, when
// AMX is hidden from a virtual machine, that of nearly four.
#pragma once

#if defined(__AVX512F__)
#include <algorithm>
#include <chrono>

namespace orca {

// Instructions on twelve independent sums, in assembly: what a compiler adds between them would take as long.
#define ORCA_TWELVE_TIMES(instruction, operands)                                                                     \
  asm volatile(".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n\t" instruction " " operands "%%zmm\\n\n\t.endr" ::    \
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",          \
                     "xmm11", "xmm12")

// Returns the nanoseconds of many repetitions.
template <typename Instructions>
inline double time_of(Instructions twelve) {
  asm volatile("vpxord %%zmm12, %%zmm12, %%zmm12" ::: "xmm12");
  ORCA_TWELVE_TIMES("vmovaps", "%%zmm12, ");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) twelve();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

inline void twelve_products() { ORCA_TWELVE_TIMES("vfmadd231ps", "%%zmm12, %%zmm12, "); }

// Compares the shortest of many alternating runs of 1 to 3 microseconds.
inline bool dot_products_pay() {
  double dots = 1e9, products = 1e9;
  for (int run = 0; run < 50; ++run) {
    dots = std::min(dots, time_of([] { ORCA_TWELVE_TIMES("vdpbf16ps", "%%zmm12, %%zmm12, "); }));
    products = std::min(products, time_of(twelve_products));
  }
  return dots < 2 * products;
}

#undef ORCA_TWELVE_TIMES

}  // namespace orca
#endif
