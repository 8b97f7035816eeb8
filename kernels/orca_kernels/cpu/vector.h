// Sixteen floats at a time, from and to memory of either element type. GCC and Clang lower the vectors to whatever the
// target has: one register of AVX-512, two of AVX2, four of SSE or NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace orca {

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));

// bfloat16 is the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

inline Floats splat(float value) { return value - Floats{}; }

inline Floats load(const float *from) {
  Floats value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline Floats load(const BFloat16 *from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

inline void store(float *to, Floats value) { std::memcpy(to, &value, sizeof(value)); }

// Rounds to the nearest, ties to even, as torch does; NaN stays NaN.
inline void store(BFloat16 *to, Floats value) {
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words is_nan = (Words)(value != value);
  const Halves halves = __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

inline float scalar(float value) { return value; }

inline float scalar(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

inline void put(float *to, float value) { *to = value; }

inline void put(BFloat16 *to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  to->bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float sum(Floats value) {
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += value[lane];
  return total;
}

inline Floats larger(Floats left, Floats right) { return left > right ? left : right; }

inline float largest(Floats value) {
  float found = value[0];
  for (int lane = 1; lane < kLanes; ++lane) found = value[lane] > found ? value[lane] : found;
  return found;
}

// e^x to about two units in the last place, by 2^n times a polynomial (Cephes' coefficients); 0 below -87.
inline Floats exponential(Floats x) {
  const Floats low = splat(-87.3f), high = splat(88.3f);
  const Floats clipped = x < low ? low : (x > high ? high : x);
  Floats scaled = clipped * 1.44269504088896341f;
  const Floats magic = splat(12582912.0f);  // 1.5 x 2^23: adding it rounds to a whole number
  const Floats whole = (scaled + magic) - magic;
  const Floats rest = clipped - whole * 0.693359375f - whole * -2.12194440e-4f;
  Floats series = splat(1.9875691500e-4f);
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
  const Floats found = series * (Floats)power;
  return x < low ? Floats{} : found;
}

}  // namespace orca
