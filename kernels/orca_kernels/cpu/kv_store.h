// The K/V store: writes the keys and values of an iteration to their slots of the pools.
#pragma once

#include "rows.h"

namespace orca {

// The number of rows, from `row` on, whose slots follow each other in one block; 0 if an earlier row is one of them.
inline int64_t run_in_block(const int64_t *slots, int64_t row, int64_t rows) {
  const auto follows = [&](int64_t next) {
    return slots[next] % kLanes > 0 && slots[next] == slots[next - 1] + 1;
  };
  if (row > 0 && follows(row)) return 0;
  int64_t end = row + 1;
  while (end < rows && follows(end)) ++end;
  return end - row;
}

#if defined(__AVX512F__)
// Transposes 16 x 16 words: first 4 x 4 words in the quarters of four vectors, then the quarters.
inline void transpose(__m512i (&rows)[kLanes]) {
  __m512i quarters[kLanes];
  for (int first = 0; first < kLanes; first += 4) {
    const __m512i low = _mm512_unpacklo_epi32(rows[first], rows[first + 1]);
    const __m512i high = _mm512_unpackhi_epi32(rows[first], rows[first + 1]);
    const __m512i next_low = _mm512_unpacklo_epi32(rows[first + 2], rows[first + 3]);
    const __m512i next_high = _mm512_unpackhi_epi32(rows[first + 2], rows[first + 3]);
    quarters[first] = _mm512_unpacklo_epi64(low, next_low);
    quarters[first + 1] = _mm512_unpackhi_epi64(low, next_low);
    quarters[first + 2] = _mm512_unpacklo_epi64(high, next_high);
    quarters[first + 3] = _mm512_unpackhi_epi64(high, next_high);
  }
  for (int word = 0; word < 4; ++word) {
    const __m512i even = _mm512_shuffle_i32x4(quarters[word], quarters[word + 4], 0x88);
    const __m512i odd = _mm512_shuffle_i32x4(quarters[word], quarters[word + 4], 0xdd);
    const __m512i next_even = _mm512_shuffle_i32x4(quarters[word + 8], quarters[word + 12], 0x88);
    const __m512i next_odd = _mm512_shuffle_i32x4(quarters[word + 8], quarters[word + 12], 0xdd);
    rows[word] = _mm512_shuffle_i32x4(even, next_even, 0x88);
    rows[word + 4] = _mm512_shuffle_i32x4(odd, next_odd, 0x88);
    rows[word + 8] = _mm512_shuffle_i32x4(even, next_even, 0xdd);
    rows[word + 12] = _mm512_shuffle_i32x4(odd, next_odd, 0xdd);
  }
}
#endif

// Writes a head's keys of `count` rows to the slots from `place` on of its block [D / w, 16, w].
template <typename T>
inline void store_keys(const T *from, int64_t stride, int64_t count, T *block, int64_t place, int64_t dim) {
  constexpr int kWidth = Product<T>::kWidth;
  int64_t begin = 0;
#if defined(__AVX512F__)
  for (; count == kLanes && begin + kLanes * kWidth <= dim; begin += kLanes * kWidth) {
    __m512i words[kLanes];
    for (int row = 0; row < kLanes; ++row) words[row] = load_as<__m512i>(from + row * stride + begin);
    transpose(words);
    for (int word = 0; word < kLanes; ++word) store_as(block + (begin + word * kWidth) * kLanes, words[word]);
  }
#endif
  for (int64_t row = 0; row < count; ++row) {
    T *to = block + (place + row) * kWidth;
    for (int64_t d = begin; d < dim; d += kWidth) std::memcpy(to + d * kLanes, from + row * stride + d, kWidth * sizeof(T));
  }
}

// Writes a head's values of `count` rows to the slots from `place` on of its block [16, D].
inline void store_values(const float *from, int64_t stride, int64_t count, float *block, int64_t place, int64_t dim) {
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(block + (place + row) * dim, from + row * stride, dim * sizeof(float));
  }
}

// Writes a head's values of `count` rows to the slots from `place` on of its block [8, D, 2].
inline void store_values(const BFloat16 *from, int64_t stride, int64_t count, BFloat16 *block, int64_t place,
                         int64_t dim) {
  for (int64_t row = 0; row < count; ++row) {
    const int64_t slot = place + row;
    const BFloat16 *const first = from + row * stride, *const second = first + stride;
    BFloat16 *const to = block + slot / 2 * 2 * dim + slot % 2;
    const bool has_pair = slot % 2 == 0 && row + 1 < count;
    int64_t d = 0;
    for (; has_pair && d + kLanes <= dim; d += kLanes) store_as(to + d * 2, widened(first + d) | widened(second + d) << 16);
    for (int64_t rest = d; rest < dim; ++rest) to[rest * 2] = first[rest];
    if (!has_pair) continue;
    for (; d < dim; ++d) to[d * 2 + 1] = second[d];
    ++row;
  }
}

// Writes keys and values [rows, G, D], with row strides, to their slots of the pools. A head's block has the words that
// attention multiplies (vector.h), of w elements each: keys as [D / w, 16, w], values as [16 / w, D, w].
template <typename T>
void store_kv(const T *key, const T *value, T *key_pool, T *value_pool, const int64_t *slots, int64_t rows,
              int64_t heads, int64_t dim, int64_t key_stride, int64_t value_stride) {
#pragma omp parallel for if (rows * heads * dim > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = run_in_block(slots, row, rows), place = slots[row] % kLanes;
    for (int64_t head = 0; count > 0 && head < heads; ++head) {
      const int64_t begin = (slots[row] / kLanes * heads + head) * kLanes * dim;
      store_keys(key + row * key_stride + head * dim, key_stride, count, key_pool + begin, place, dim);
      store_values(value + row * value_stride + head * dim, value_stride, count, value_pool + begin, place, dim);
    }
  }
}

// Quantises a row of `size` elements, a multiple of sixteen; writes number i to to[i * stride] and returns the scale.
// The same numbers and scales as quantize_rows of kv_quantization.py.
template <typename T>
inline float quantize_row(const T *from, int64_t size, int8_t *to, int64_t stride) {
  const float scale = row_scale(from, size);
  if (!(scale > 0)) {
    for (int64_t i = 0; i < size; ++i) to[i * stride] = 0;
    return scale;
  }
  for (int64_t i = 0; i < size; i += kLanes) {
    int32_t numbers[kLanes];
    store_as(numbers, row_numbers(from + i, kLanes, scale));
    for (int lane = 0; lane < kLanes; ++lane) to[(i + lane) * stride] = static_cast<int8_t>(numbers[lane]);
  }
  return scale;
}

// Like store_kv, into pools of integers: keys as [D, 16], values as [16, D], and scales [B, G, 16].
template <typename T>
void store_kv_int8(const T *key, const T *value, int8_t *key_pool, int8_t *value_pool, float *key_scales,
                   float *value_scales, const int64_t *slots, int64_t rows, int64_t heads, int64_t dim,
                   int64_t key_stride, int64_t value_stride) {
#pragma omp parallel for if (rows * heads * dim > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t block = slots[row] / kLanes, place = slots[row] % kLanes;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t index = block * heads + head, begin = index * kLanes * dim;
      key_scales[index * kLanes + place] =
          quantize_row(key + row * key_stride + head * dim, dim, key_pool + begin + place, kLanes);
      value_scales[index * kLanes + place] =
          quantize_row(value + row * value_stride + head * dim, dim, value_pool + begin + place * dim, 1);
    }
  }
}

}  // namespace orca
