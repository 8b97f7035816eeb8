// Operations on single rows of an iteration: norms, activations, the rotary embedding, and scales of integers.
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

}  // namespace orca
