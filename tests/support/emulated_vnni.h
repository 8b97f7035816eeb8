// Emulates VPDPBUSD of AVX-VNNI for a processor without it (Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2). The compiler's option `-include` puts this file before the product's source.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated_vnni {

// Unsigned bytes on the left times signed bytes on the right; sums wrap. Not inlined into functions that are compiled for
// the instruction: there, the compiler may use it.
__attribute__((noinline)) static __m256i dot_products(__m256i to, __m256i left, __m256i right) {
  uint32_t sums[8];
  uint8_t unsigned_bytes[32];
  int8_t signed_bytes[32];
  std::memcpy(sums, &to, sizeof(sums));
  std::memcpy(unsigned_bytes, &left, sizeof(unsigned_bytes));
  std::memcpy(signed_bytes, &right, sizeof(signed_bytes));
  for (int place = 0; place < 32; ++place) {
    sums[place / 4] += static_cast<uint32_t>(unsigned_bytes[place] * signed_bytes[place]);
  }
  std::memcpy(&to, sums, sizeof(sums));
  return to;
}

}  // namespace emulated_vnni

#define _mm256_dpbusd_avx_epi32(to, left, right) emulated_vnni::dot_products(to, left, right)
