// The element type of a compilation: ORCA_ELEMENT is 32 for float, 16 for float16 and 160 for bfloat16. Includes no
// header of the CUDA toolkit, so that NVRTC is sufficient; the tests define ORCA_EMULATED to compile for a CPU.
#pragma once

typedef long long Index;

#if ORCA_ELEMENT == 32
typedef float Element;
__device__ inline float widen(Element value) { return value; }
__device__ inline Element narrow(float value) { return value; }
#else
struct Element {
  unsigned short bits;
};
#if ORCA_ELEMENT == 160
__device__ inline float widen(Element value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
__device__ inline Element narrow(float value) {  // to nearest, ties to even; NaN stays NaN
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = value != value ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<unsigned short>(rounded >> 16)};
}
#elif defined(ORCA_EMULATED)
inline float widen(Element value) { return emulated_half_to_float(value.bits); }
inline Element narrow(float value) { return {emulated_float_to_half(value)}; }
#else
__device__ inline float widen(Element value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ inline Element narrow(float value) {
  Element half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
  return half;
}
#endif

// Two adjacent elements as one word, the first in the low half.
__device__ inline unsigned pair(Element first, Element second) {
  return first.bits | static_cast<unsigned>(second.bits) << 16;
}
__device__ inline unsigned narrow_pair(float first, float second) {
#ifdef ORCA_EMULATED
  return pair(narrow(first), narrow(second));
#else
  unsigned both;
#if ORCA_ELEMENT == 160
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
#endif
  return both;
#endif
}
#endif

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kLowest = -3.402823466e+38f;

__device__ inline float warp_sum(float value) {
  for (int step = kWarp / 2; step; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = kWarp / 2; step; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
