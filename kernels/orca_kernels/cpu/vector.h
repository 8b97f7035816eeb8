// Vectors of sixteen floats, loaded from and stored to memory of either element type. GCC and Clang lower a vector to
// one register of AVX-512, two of AVX2, four of SSE or NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>  // for instructions that are several times faster than the compiler's lowering of vectors
#endif

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
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
  return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}

inline void store(float *to, Floats value) { std::memcpy(to, &value, sizeof(value)); }

// Rounds to nearest, ties to even, like torch; NaN stays NaN. The instruction treats subnormal floats as zero.
inline void store(BFloat16 *to, Floats value) {
#if defined(__AVX512BF16__)
  const __m256bh halves = _mm512_cvtneps_pbh((__m512)value);
  std::memcpy(to, &halves, sizeof(halves));
#else
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words is_nan = (Words)(value != value);
  const Halves halves = __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), Halves);
  std::memcpy(to, &halves, sizeof(halves));
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

template <typename V>
inline V larger(V left, V right) {
  return left > right ? left : right;
}

// Reduces a vector to one number by halving.
template <int kCount = kLanes, typename V, typename Combine>
inline float reduce(V value, Combine combine) {
  if constexpr (kCount == 2) {
    return combine(static_cast<float>(value[0]), static_cast<float>(value[1]));
  } else {
    typedef float Half __attribute__((vector_size(kCount / 2 * sizeof(float))));
    Half low, high;
    std::memcpy(&low, &value, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char *>(&value) + sizeof(low), sizeof(high));
    return reduce<kCount / 2>(static_cast<Half>(combine(low, high)), combine);
  }
}

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
  const Floats result = series * (Floats)power;
  return x < low ? Floats{} : result;
}

// Multiplication of elements as words of four bytes, a float or a pair of bfloat16, sixteen words at a time.
template <typename T>
struct Product;

template <>
struct Product<float> {
  static constexpr int kWidth = 1;  // elements of a word

  // Adds the products of one word with sixteen words.
  static Floats add(Floats to, uint32_t word, const uint32_t *words) {
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return to + value * load(reinterpret_cast<const float *>(words));
  }
};

template <>
struct Product<BFloat16> {
  static constexpr int kWidth = 2;

  static Floats add(Floats to, uint32_t word, Words words) {
#if defined(__AVX512BF16__)
    const __m512i left = _mm512_set1_epi32(static_cast<int32_t>(word));
    return (Floats)_mm512_dpbf16_ps((__m512)to, (__m512bh)left, (__m512bh)words);
#else
    const float first = scalar(BFloat16{static_cast<uint16_t>(word)});
    const float second = scalar(BFloat16{static_cast<uint16_t>(word >> 16)});
    return to + first * (Floats)(words << 16) + second * (Floats)(words & 0xffff0000);
#endif
  }

  static Floats add(Floats to, uint32_t word, const uint32_t *from) { return add(to, word, load_words(from)); }

  // Like `add`, but ignores the second element of each pair, which may have any value.
  static Floats add_first(Floats to, uint32_t word, const uint32_t *from) {
    return add(to, word, load_words(from) & 0xffff);
  }

 private:
  static Words load_words(const uint32_t *from) {
    Words words;
    std::memcpy(&words, from, sizeof(words));
    return words;
  }
};

}  // namespace orca
