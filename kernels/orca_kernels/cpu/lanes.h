// Vectors of sixteen elements of four bytes, in registers. AVX-512 has registers of this size. For other instruction
// sets a vector is a struct of registers: two of AVX2, four of SSE or NEON. GCC would lower a vector that is larger than
// a register to moves of single elements in memory, which are many times slower.
#pragma once

#include <cstdint>
#include <cstring>

// For instructions that are several times faster than the compiler's lowering of vectors.
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Targets that multiply and add with one rounding multiply matrices themselves (linear.h, quantized_linear.h).
#if defined(__AVX2__) || defined(__aarch64__)
#define ORCA_MULTIPLY_ADD 1
#endif

#include "lines.h"

namespace orca {

// For the innermost loops. Where a vector is several registers, GCC would call functions, whose vectors are in memory,
// and keep an array of vectors there, unless the loops over it are unrolled early.
#if !defined(__AVX512F__)
#define ORCA_INLINE inline __attribute__((always_inline))
#define ORCA_UNROLL _Pragma("GCC unroll 16")
#else
#define ORCA_INLINE inline
#define ORCA_UNROLL
#endif

constexpr int kLanes = 16;

// bfloat16 is the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

#if defined(__AVX512F__)

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));

template <typename To, typename From>
inline To reinterpreted(From from) {
  return (To)from;
}

inline Ints whole_numbers(Floats from) { return __builtin_convertvector(from, Ints); }

inline Floats floats(Ints from) { return __builtin_convertvector(from, Floats); }

template <typename V>
inline V choose(Ints condition, V yes, V no) {
  return condition ? yes : no;
}

template <typename V, typename T>
inline V load_as(const T *from) {
  V value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename V, typename T>
inline void store_as(T *to, V value) {
  std::memcpy(to, &value, sizeof(value));
}

inline Words widened(const BFloat16 *from) {
  return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}

inline Floats widened(const int8_t *from) {
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
}

// left x right + to, rounded once. `left * right + to` is rounded once or twice, as the compiler likes.
inline Floats multiply_add(Floats left, Floats right, Floats to) {
  return (Floats)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)to);
}

// Adds to each element the products of the two halves of `left` and of `right`, signed numbers of sixteen bits.
inline Ints add_pairs(Ints to, Words left, uint32_t right) {
  return (Ints)_mm512_add_epi32((__m512i)to, _mm512_madd_epi16((__m512i)left, _mm512_set1_epi32(right)));
}

// The lowest four bits of each element minus 8. The permutation looks at no other bits.
inline Floats lowest_four_bits(Words from) {
  const Floats numbers = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  return (Floats)_mm512_permutexvar_ps((__m512i)from, (__m512)numbers);
}

inline void store_narrowed(BFloat16 *to, Words value) { store_as(to, __builtin_convertvector(value, Halves)); }

#else

#if defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr int kRegisterLanes = kRegisterBytes / 4;  // elements of a register
constexpr int kRegisters = kLanes / kRegisterLanes;
// Unrolled at once, before GCC replaces such a loop by a copy of memory.
#define ORCA_REGISTERS(i) _Pragma("GCC unroll 4") for (int i = 0; i < kRegisters; ++i)

template <typename E>
struct Vector {
  typedef E Register __attribute__((vector_size(kRegisterBytes)));
  Register registers[kRegisters];
};

typedef Vector<float> Floats;
typedef Vector<int32_t> Ints;
typedef Vector<uint32_t> Words;
typedef uint16_t HalfRegister __attribute__((vector_size(kRegisterBytes / 2)));

template <typename E>
struct Same {
  typedef E type;
};

// The operators of the compiler's vectors. A scalar stands for a vector of sixteen equal elements.
#define ORCA_OPERATOR(SYMBOL)                                                                                     \
  template <typename E>                                                                                           \
  inline Vector<E> operator SYMBOL(Vector<E> left, Vector<E> right) {                                             \
    ORCA_REGISTERS(i) left.registers[i] = left.registers[i] SYMBOL right.registers[i];                            \
    return left;                                                                                                  \
  }                                                                                                               \
  template <typename E>                                                                                           \
  inline Vector<E> operator SYMBOL(Vector<E> left, typename Same<E>::type right) {                                \
    ORCA_REGISTERS(i) left.registers[i] = left.registers[i] SYMBOL right;                                         \
    return left;                                                                                                  \
  }                                                                                                               \
  template <typename E>                                                                                           \
  inline Vector<E> operator SYMBOL(typename Same<E>::type left, Vector<E> right) {                                \
    ORCA_REGISTERS(i) right.registers[i] = left SYMBOL right.registers[i];                                        \
    return right;                                                                                                 \
  }
ORCA_OPERATOR(+)
ORCA_OPERATOR(-)
ORCA_OPERATOR(*)
ORCA_OPERATOR(/)
ORCA_OPERATOR(&)
ORCA_OPERATOR(|)
ORCA_OPERATOR(<<)
ORCA_OPERATOR(>>)
#undef ORCA_OPERATOR

#define ORCA_COMPARISON(SYMBOL)                                                                                   \
  inline Ints operator SYMBOL(Floats left, Floats right) {                                                        \
    Ints result;                                                                                                  \
    ORCA_REGISTERS(i) result.registers[i] = left.registers[i] SYMBOL right.registers[i];                          \
    return result;                                                                                                \
  }
ORCA_COMPARISON(<)
ORCA_COMPARISON(>)
ORCA_COMPARISON(!=)
#undef ORCA_COMPARISON

template <typename E>
inline Vector<E> &operator+=(Vector<E> &left, Vector<E> right) {
  return left = left + right;
}

template <typename E>
inline Vector<E> operator-(Vector<E> value) {
  ORCA_REGISTERS(i) value.registers[i] = -value.registers[i];
  return value;
}

inline Words operator~(Words value) {
  ORCA_REGISTERS(i) value.registers[i] = ~value.registers[i];
  return value;
}

template <typename To, typename From>
inline To reinterpreted(From from) {
  To result;
  ORCA_REGISTERS(i) result.registers[i] = (typename To::Register)from.registers[i];
  return result;
}

inline Ints whole_numbers(Floats from) {
  Ints result;
  ORCA_REGISTERS(i) result.registers[i] = __builtin_convertvector(from.registers[i], Ints::Register);
  return result;
}

inline Floats floats(Ints from) {
  Floats result;
  ORCA_REGISTERS(i) result.registers[i] = __builtin_convertvector(from.registers[i], Floats::Register);
  return result;
}

template <typename V>
inline V choose(Ints condition, V yes, V no) {
  ORCA_REGISTERS(i) yes.registers[i] = condition.registers[i] ? yes.registers[i] : no.registers[i];
  return yes;
}

template <typename V, typename T>
inline V load_as(const T *from) {
  V value;
  ORCA_REGISTERS(i) std::memcpy(&value.registers[i], from + i * (kRegisterBytes / sizeof(T)), kRegisterBytes);
  return value;
}

template <typename V, typename T>
inline void store_as(T *to, V value) {
  ORCA_REGISTERS(i) std::memcpy(to + i * (kRegisterBytes / sizeof(T)), &value.registers[i], kRegisterBytes);
}

#if defined(__aarch64__)
inline Words widened(const BFloat16 *from) {
  Words result;
  ORCA_REGISTERS(i) {
    const uint16x4_t halves = vld1_u16(reinterpret_cast<const uint16_t *>(from + i * kRegisterLanes));
    result.registers[i] = (Words::Register)vmovl_u16(halves);
  }
  return result;
}

inline Floats widened(const int8_t *from) {
  const int8x16_t bytes = vld1q_s8(from);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  const int32x4_t numbers[kRegisters] = {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low),
                                         vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
  Floats result;
  ORCA_REGISTERS(i) result.registers[i] = (Floats::Register)vcvtq_f32_s32(numbers[i]);
  return result;
}
#else
inline Words widened(const BFloat16 *from) {
  Words result;
  ORCA_REGISTERS(i) {
    HalfRegister halves;
    std::memcpy(&halves, from + i * kRegisterLanes, sizeof(halves));
    result.registers[i] = __builtin_convertvector(halves, Words::Register);
  }
  return result;
}

inline Floats widened(const int8_t *from) {
  Floats result;
  ORCA_REGISTERS(i) {
#if defined(__AVX2__)
    const __m128i numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + i * kRegisterLanes));
    result.registers[i] = (Floats::Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers));
#else
    typedef int8_t Bytes __attribute__((vector_size(kRegisterLanes)));
    Bytes bytes;
    std::memcpy(&bytes, from + i * kRegisterLanes, sizeof(bytes));
    result.registers[i] = __builtin_convertvector(__builtin_convertvector(bytes, Ints::Register), Floats::Register);
#endif
  }
  return result;
}
#endif

// left x right + to: rounded once if the target has the instruction (ORCA_MULTIPLY_ADD), otherwise twice.
inline Floats multiply_add(Floats left, Floats right, Floats to) {
  ORCA_REGISTERS(i) {
#if defined(__AVX2__)
    to.registers[i] = (Floats::Register)_mm256_fmadd_ps(left.registers[i], right.registers[i], to.registers[i]);
#elif defined(__aarch64__)
    to.registers[i] = (Floats::Register)vfmaq_f32(to.registers[i], left.registers[i], right.registers[i]);
#else
    to.registers[i] = left.registers[i] * right.registers[i] + to.registers[i];
#endif
  }
  return to;
}

// Adds to each element the products of the two halves of `left` and of `right`, signed numbers of sixteen bits.
ORCA_INLINE Ints add_pairs(Ints to, Words left, uint32_t right) {
  ORCA_REGISTERS(i) {
#if defined(__AVX2__)
    const __m256i products = _mm256_madd_epi16((__m256i)left.registers[i], _mm256_set1_epi32(right));
    to.registers[i] = (Ints::Register)_mm256_add_epi32((__m256i)to.registers[i], products);
#elif defined(__SSE2__)
    const __m128i products = _mm_madd_epi16((__m128i)left.registers[i], _mm_set1_epi32(right));
    to.registers[i] = (Ints::Register)_mm_add_epi32((__m128i)to.registers[i], products);
#elif defined(__aarch64__)
    const int16x8_t numbers = (int16x8_t)left.registers[i], factors = (int16x8_t)vdupq_n_u32(right);
    const int32x4_t low = vmull_s16(vget_low_s16(numbers), vget_low_s16(factors));
    to.registers[i] = (Ints::Register)vaddq_s32((int32x4_t)to.registers[i],
                                                vpaddq_s32(low, vmull_high_s16(numbers, factors)));
#endif
  }
  return to;
}

// The lowest four bits of each element minus 8.
inline Floats lowest_four_bits(Words from) {
  Floats result;
  ORCA_REGISTERS(i) {
    const Ints::Register numbers = (Ints::Register)(from.registers[i] & 15) - 8;
    result.registers[i] = __builtin_convertvector(numbers, Floats::Register);
  }
  return result;
}

inline void store_narrowed(BFloat16 *to, Words value) {
  ORCA_REGISTERS(i) {
    const HalfRegister halves = __builtin_convertvector(value.registers[i], HalfRegister);
    std::memcpy(to + i * kRegisterLanes, &halves, sizeof(halves));
  }
}

#endif

}  // namespace orca
