// Arithmetic of vectors, and their loads from and stores to memory of either element type.
#pragma once

#include <cmath>

#include "lanes.h"

namespace orca {

inline Floats splat(float value) { return value - Floats{}; }

inline Floats load(const float *from) { return load_as<Floats>(from); }

inline Floats load(const BFloat16 *from) { return reinterpreted<Floats>(widened(from) << 16); }

// Loads `count` elements if they are fewer than sixteen; zeros follow them.
template <typename T>
inline Floats load_up_to(const T *from, int64_t count) {
  if (count >= kLanes) return load(from);
  T elements[kLanes] = {};
  std::memcpy(elements, from, count * sizeof(T));
  return load(elements);
}

inline void store(float *to, Floats value) { store_as(to, value); }

// Rounds to nearest, ties to even, like torch; NaN stays NaN. The instruction of x86 treats subnormal floats as zero.
inline void store(BFloat16 *to, Floats value) {
#if defined(__AVX512BF16__)
  const __m256bh halves = _mm512_cvtneps_pbh((__m512)value);
  std::memcpy(to, &halves, sizeof(halves));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  for (int i = 0; i < kRegisters; i += 2) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(value.registers[i]);
    const bfloat16x8_t both = vcvtq_high_bf16_f32(low, value.registers[i + 1]);
    vst1q_bf16(reinterpret_cast<bfloat16_t *>(to + i * kRegisterLanes), both);
  }
#else
  const Words bits = reinterpreted<Words>(value);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words is_nan = reinterpreted<Words>(value != value);
  store_narrowed(to, (quiet & is_nan) | (rounded & ~is_nan));
#endif
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

// Of numbers, and of the parts that `reduce` halves a register into.
template <typename V>
inline V larger(V left, V right) {
  return left > right ? left : right;
}

inline Floats larger(Floats left, Floats right) { return choose(left > right, left, right); }

#if !defined(__AVX512F__)
// Reduces a register to one number by halving.
template <int kCount, typename V, typename Combine>
inline float reduce_register(V value, Combine combine) {
  if constexpr (kCount == 2) {
    return combine(static_cast<float>(value[0]), static_cast<float>(value[1]));
  } else {
    typedef float Half __attribute__((vector_size(kCount / 2 * sizeof(float))));
    Half low, high;
    std::memcpy(&low, &value, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char *>(&value) + sizeof(low), sizeof(high));
    return reduce_register<kCount / 2>(static_cast<Half>(combine(low, high)), combine);
  }
}

// Reduces a vector to one number by halving.
template <typename Combine>
inline float reduce(Floats value, Combine combine) {
  typedef Floats::Register Register;
  Register half[2] = {value.registers[0], value.registers[kRegisters - 1]};
  if constexpr (kRegisters == 4) {
    half[0] = combine(value.registers[0], value.registers[2]);
    half[1] = combine(value.registers[1], value.registers[3]);
  }
  return reduce_register<kRegisterLanes>(static_cast<Register>(combine(half[0], half[1])), combine);
}
#endif

inline float sum(Floats value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#else
  return reduce(value, [](auto left, auto right) { return left + right; });
#endif
}

inline float largest(Floats value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#else
  return reduce(value, [](auto left, auto right) { return larger(left, right); });
#endif
}

// To the nearest whole number, ties to even, for magnitudes below 2^22.
inline Floats nearest(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 x 2^23: adding it rounds to a whole number
  return (x + magic) - magic;
}

// e^x to about two units in the last place, by 2^n times a polynomial (Cephes' coefficients); 0 below -87.
inline Floats exponential(Floats x) {
  const Floats low = splat(-87.3f), high = splat(88.3f);
#if defined(__AVX512F__)
  const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
  const Floats clipped = (Floats)_mm512_min_ps((__m512)high, (__m512)x);  // NaN stays NaN
  const Floats whole = (Floats)_mm512_roundscale_ps((__m512)(clipped * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
#else
  const Floats clipped = choose(x < low, low, choose(x > high, high, x));
  const Floats whole = nearest(clipped * 1.44269504088896341f);
#endif
  const Floats rest = clipped - whole * 0.693359375f - whole * -2.12194440e-4f;
  Floats series = splat(1.9875691500e-4f);
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_scalef_ps(counts, (__m512)series, (__m512)whole);
#else
  const Ints power = (whole_numbers(whole) + 127) << 23;
  const Floats result = series * reinterpreted<Floats>(power);
  return choose(x < low, Floats{}, result);
#endif
}

// Multiplication of a word of four bytes, a float or a pair of bfloat16, with sixteen stored words. Stored integers of
// eight bits are widened to floats. All are added by `multiply_add`, which leaves the compiler no choice of roundings: a
// score is the same in a prompt and in an increment.
template <typename T>
struct Product;

template <>
struct Product<float> {
  using Factor = float;     // element of the word on the left
  using Stored = uint32_t;  // word in memory on the right
  static constexpr int kWidth = 1;  // elements of a word

  // Adds the products of one word with sixteen words.
  static ORCA_INLINE Floats add(Floats to, uint32_t word, const uint32_t *words) {
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return multiply_add(splat(value), load(reinterpret_cast<const float *>(words)), to);
  }
};

// Arm's dot products of bfloat16 (BFDOT, BFMMLA) are not used: they round every sum to odd instead of to nearest, treat
// subnormal numbers as zero, and compute something else where a thread has set FPCR.EBF (Arm Architecture Reference
// Manual, DDI 0487, BFDotAdd). Widened elements have the same sums on every Arm processor.
template <>
struct Product<BFloat16> {
  using Factor = BFloat16;
  using Stored = uint32_t;
  static constexpr int kWidth = 2;

  static ORCA_INLINE Floats add(Floats to, uint32_t word, Words words) {
#if defined(__AVX512BF16__)
    const __m512i left = _mm512_set1_epi32(static_cast<int32_t>(word));
    return (Floats)_mm512_dpbf16_ps((__m512)to, (__m512bh)left, (__m512bh)words);
#else
    const float first = scalar(BFloat16{static_cast<uint16_t>(word)});
    const float second = scalar(BFloat16{static_cast<uint16_t>(word >> 16)});
    to = multiply_add(splat(first), reinterpreted<Floats>(words << 16), to);
    return multiply_add(splat(second), reinterpreted<Floats>(words & 0xffff0000), to);
#endif
  }

  static ORCA_INLINE Floats add(Floats to, uint32_t word, const uint32_t *from) {
    return add(to, word, load_as<Words>(from));
  }

  // Like `add`, but ignores the second element of each pair, which may have any value.
  static ORCA_INLINE Floats add_first(Floats to, uint32_t word, const uint32_t *from) {
    return add(to, word, load_as<Words>(from) & 0xffff);
  }
};

template <>
struct Product<int8_t> {
  using Factor = float;
  using Stored = int8_t;
  static constexpr int kWidth = 1;

  static ORCA_INLINE Floats add(Floats to, uint32_t word, const int8_t *numbers) {
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return multiply_add(splat(value), widened(numbers), to);
  }
};

}  // namespace orca
