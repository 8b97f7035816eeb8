// Vectors of sixteen elements of four bytes, in registers. AVX-512 has registers of this size. For other instruction
// sets a vector is a struct of registers: two of AVX2, four of SSE or NEON. GCC would lower a vector that is larger than
// a register to moves of single elements in memory, which are many times slower.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>  // for instructions that are several times faster than the compiler's lowering of vectors
#endif

namespace orca {

constexpr int kLanes = 16;

// Memory whose vectors do not cross cache lines.
template <typename E>
struct LineAllocator {
  typedef E value_type;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <typename Other>
  LineAllocator(const LineAllocator<Other> &) {}
  E *allocate(std::size_t count) { return static_cast<E *>(::operator new(count * sizeof(E), kLine)); }
  void deallocate(E *memory, std::size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator &) const { return true; }
  bool operator!=(const LineAllocator &) const { return false; }
};

template <typename E>
using Lines = std::vector<E, LineAllocator<E>>;

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
    for (int i = 0; i < kRegisters; ++i) left.registers[i] = left.registers[i] SYMBOL right.registers[i];         \
    return left;                                                                                                  \
  }                                                                                                               \
  template <typename E>                                                                                           \
  inline Vector<E> operator SYMBOL(Vector<E> left, typename Same<E>::type right) {                                \
    for (int i = 0; i < kRegisters; ++i) left.registers[i] = left.registers[i] SYMBOL right;                      \
    return left;                                                                                                  \
  }                                                                                                               \
  template <typename E>                                                                                           \
  inline Vector<E> operator SYMBOL(typename Same<E>::type left, Vector<E> right) {                                \
    for (int i = 0; i < kRegisters; ++i) right.registers[i] = left SYMBOL right.registers[i];                     \
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
    for (int i = 0; i < kRegisters; ++i) result.registers[i] = left.registers[i] SYMBOL right.registers[i];       \
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
  for (int i = 0; i < kRegisters; ++i) value.registers[i] = -value.registers[i];
  return value;
}

inline Words operator~(Words value) {
  for (int i = 0; i < kRegisters; ++i) value.registers[i] = ~value.registers[i];
  return value;
}

template <typename To, typename From>
inline To reinterpreted(From from) {
  To result;
  for (int i = 0; i < kRegisters; ++i) result.registers[i] = (typename To::Register)from.registers[i];
  return result;
}

inline Ints whole_numbers(Floats from) {
  Ints result;
  for (int i = 0; i < kRegisters; ++i) result.registers[i] = __builtin_convertvector(from.registers[i], Ints::Register);
  return result;
}

template <typename V>
inline V choose(Ints condition, V yes, V no) {
  for (int i = 0; i < kRegisters; ++i) yes.registers[i] = condition.registers[i] ? yes.registers[i] : no.registers[i];
  return yes;
}

template <typename V, typename T>
inline V load_as(const T *from) {
  V value;
  for (int i = 0; i < kRegisters; ++i) {
    std::memcpy(&value.registers[i], from + i * (kRegisterBytes / sizeof(T)), kRegisterBytes);
  }
  return value;
}

template <typename V, typename T>
inline void store_as(T *to, V value) {
  for (int i = 0; i < kRegisters; ++i) {
    std::memcpy(to + i * (kRegisterBytes / sizeof(T)), &value.registers[i], kRegisterBytes);
  }
}

inline Words widened(const BFloat16 *from) {
  Words result;
  for (int i = 0; i < kRegisters; ++i) {
    HalfRegister halves;
    std::memcpy(&halves, from + i * kRegisterLanes, sizeof(halves));
    result.registers[i] = __builtin_convertvector(halves, Words::Register);
  }
  return result;
}

#if defined(__AVX2__)
inline Floats widened(const int8_t *from) {
  Floats result;
  for (int i = 0; i < kRegisters; ++i) {
    const __m128i numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + i * kRegisterLanes));
    result.registers[i] = (Floats::Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers));
  }
  return result;
}
#else
inline Floats widened(const int8_t *from) {
  typedef int8_t Bytes __attribute__((vector_size(kRegisterLanes)));
  Floats result;
  for (int i = 0; i < kRegisters; ++i) {
    Bytes bytes;
    std::memcpy(&bytes, from + i * kRegisterLanes, sizeof(bytes));
    result.registers[i] = __builtin_convertvector(__builtin_convertvector(bytes, Ints::Register), Floats::Register);
  }
  return result;
}
#endif

#if defined(__AVX2__)
// left x right + to, rounded once. `left * right + to` is rounded once or twice, as the compiler likes.
inline Floats multiply_add(Floats left, Floats right, Floats to) {
  for (int i = 0; i < kRegisters; ++i) {
    to.registers[i] = (Floats::Register)_mm256_fmadd_ps(left.registers[i], right.registers[i], to.registers[i]);
  }
  return to;
}

// The lowest four bits of each element minus 8.
inline Floats lowest_four_bits(Words from) {
  Floats result;
  for (int i = 0; i < kRegisters; ++i) {
    const __m256i bits = _mm256_and_si256((__m256i)from.registers[i], _mm256_set1_epi32(15));
    result.registers[i] = (Floats::Register)_mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(8)));
  }
  return result;
}
#endif

inline void store_narrowed(BFloat16 *to, Words value) {
  for (int i = 0; i < kRegisters; ++i) {
    const HalfRegister halves = __builtin_convertvector(value.registers[i], HalfRegister);
    std::memcpy(to + i * kRegisterLanes, &halves, sizeof(halves));
  }
}

#endif

}  // namespace orca
