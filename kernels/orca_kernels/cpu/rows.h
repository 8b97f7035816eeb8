// Operations on single rows of an iteration: norms, activations, the rotary embedding, and the K/V store.
// Sums are in float for every element type; the result of a row does not depend on its place in the batch.
#pragma once

#include <algorithm>
#include <limits>

#include "vector.h"

namespace orca {

// More than one thread pays off only above this amount of work.
constexpr int64_t kParallelElements = 1 << 15;

template <typename T>
inline float row_sum(const T *x, int64_t size) {
  Floats total{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) total += load(x + i);
  float result = sum(total);
  for (; i < size; ++i) result += scalar(x[i]);
  return result;
}

// Sum of (x - shift)^2.
template <typename T>
inline float row_squares(const T *x, int64_t size, float shift) {
  Floats total{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats value = load(x + i) - shift;
    total += value * value;
  }
  float result = sum(total);
  for (; i < size; ++i) result += (scalar(x[i]) - shift) * (scalar(x[i]) - shift);
  return result;
}

template <typename T>
void layer_norm(const T *x, const T *weight, const T *bias, T *y, int64_t rows, int64_t size, float epsilon) {
#pragma omp parallel for if (rows * size > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const T *from = x + row * size;
    T *to = y + row * size;
    const float mean = row_sum(from, size) / size;
    const float scale = 1 / std::sqrt(row_squares(from, size, mean) / size + epsilon);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      store(to + i, (load(from + i) - mean) * scale * load(weight + i) + load(bias + i));
    }
    for (; i < size; ++i) put(to + i, (scalar(from[i]) - mean) * scale * scalar(weight[i]) + scalar(bias[i]));
  }
}

// Like transformers: rounds the normalised value to the element type before multiplying by the weight.
template <typename T>
void rms_norm(const T *x, const T *weight, T *y, int64_t rows, int64_t size, float epsilon) {
#pragma omp parallel for if (rows * size > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const T *from = x + row * size;
    T *to = y + row * size;
    const float scale = 1 / std::sqrt(row_squares(from, size, 0.0f) / size + epsilon);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      store(to + i, load(from + i) * scale);
      store(to + i, load(to + i) * load(weight + i));
    }
    for (; i < size; ++i) {
      put(to + i, scalar(from[i]) * scale);
      put(to + i, scalar(to[i]) * scalar(weight[i]));
    }
  }
}

// y = silu(gate) x up; a row of gate_up [S, 2 I] has the gates, then the ups.
template <typename T>
void silu_and_multiply(const T *gate_up, T *y, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const T *gate = gate_up + row * 2 * size, *up = gate + size;
    T *to = y + row * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const Floats value = load(gate + i);
      store(to + i, value / (1.0f + exponential(-value)) * load(up + i));
    }
    for (; i < size; ++i) {
      const float value = scalar(gate[i]);
      put(to + i, value / (1 + std::exp(-value)) * scalar(up[i]));
    }
  }
}

// Rotates the halves of every head in place; x [S] rows of `stride` elements, cosine and sine [S, D].
template <typename T>
void rotate(T *x, const float *cosine, const float *sine, int64_t rows, int64_t heads, int64_t dim, int64_t stride) {
#pragma omp parallel for if (rows * heads * dim > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const float *c = cosine + row * dim, *s = sine + row * dim;
    for (int64_t head = 0; head < heads; ++head) {
      T *low = x + row * stride + head * dim, *high = low + dim / 2;
      int64_t i = 0;
      for (; i + kLanes <= dim / 2; i += kLanes) {
        const Floats a = load(low + i), b = load(high + i);
        store(low + i, a * load(c + i) - b * load(s + i));
        store(high + i, b * load(c + i + dim / 2) + a * load(s + i + dim / 2));
      }
      for (; i < dim / 2; ++i) {
        const float a = scalar(low[i]), b = scalar(high[i]);
        put(low + i, a * c[i] - b * s[i]);
        put(high + i, b * c[i + dim / 2] + a * s[i + dim / 2]);
      }
    }
  }
}

// Writes keys and values [rows, G, D], with row strides, to their slots of the pools. A head's block has the words that
// attention multiplies (vector.h), of w elements each: keys as [D / w, 16, w], values as [16 / w, D, w].
template <typename T>
void store_kv(const T *key, const T *value, T *key_pool, T *value_pool, const int64_t *slots, int64_t rows,
              int64_t heads, int64_t dim, int64_t key_stride, int64_t value_stride) {
  constexpr int kWidth = Product<T>::kWidth;
#pragma omp parallel for if (rows * heads * dim > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t block = slots[row] / kLanes, place = slots[row] % kLanes;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t begin = (block * heads + head) * kLanes * dim;
      const T *from = key + row * key_stride + head * dim;
      T *to = key_pool + begin + place * kWidth;
      for (int64_t d = 0; d < dim; d += kWidth) std::memcpy(to + d * kLanes, from + d, kWidth * sizeof(T));
      from = value + row * value_stride + head * dim;
      to = value_pool + begin + place / kWidth * kWidth * dim + place % kWidth;
      for (int64_t d = 0; d < dim; ++d) to[d * kWidth] = from[d];
    }
  }
}

// The scale of a row as integers: its largest magnitude / 127. As in quantize_rows of kv_quantization.py, a scale below the
// normal floats becomes 0, and a row with an infinity or NaN has scale NaN.
template <typename T>
inline float row_scale(const T *from, int64_t size) {
  Floats most{}, invalid{};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats value = load_up_to(from + i, size - i);
    most = larger(most, larger(value, -value));
    invalid += value - value;  // 0, or NaN for an infinity or NaN
  }
  const float scale = largest(most) / 127 + sum(invalid);
  return scale < std::numeric_limits<float>::min() ? 0 : scale;
}

// The integers of up to sixteen elements of a row, for a scale above 0; zeros follow the last element.
template <typename T>
inline Ints row_numbers(const T *from, int64_t count, float scale) {
  return whole_numbers(nearest(load_up_to(from, count) / splat(scale)));
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
