// y = x W^T + b for weights of eight bits: W[output, input] = number x scale[output, group], groups of kScaleGroup inputs.
// A panel (linear.h) has one byte per output and step; numbers are widened to floats in registers, and rows of bfloat16
// when they are packed. The sum of a group is multiplied by its scale and added to the sum of the groups before it.
#pragma once

#include "linear.h"

#if defined(__AVX2__)

namespace orca {

constexpr int64_t kScaleGroup = 128;            // GROUP of quantization.py
constexpr int64_t kInputsOfLine = 64 / kPanel;  // inputs whose numbers fill a cache line

inline int64_t scale_groups(int64_t inputs) { return (inputs + kScaleGroup - 1) / kScaleGroup; }

template <typename T>
struct Int8Call : MapCall<T> {
  using Row = float;
  const int8_t *panels;  // [outputs / kPanel, inputs, kPanel]
  const float *scales;   // [outputs / kPanel, groups, kPanel]

  // See LinearCall::multiply.
  template <int kRows>
  void multiply(const uint32_t *words, int64_t panel, Floats (&sums)[kRows][kVectors]) const {
    const int8_t *numbers = panels + panel * this->inputs * kPanel;
    const float *scale = scales + panel * scale_groups(this->inputs) * kPanel;
    for (int64_t first = 0; first < this->inputs; first += kScaleGroup, scale += kPanel) {
      const int64_t end = std::min(this->inputs, first + kScaleGroup);
      Floats group[kRows][kVectors] = {};
      int64_t input = first;
      for (; input + kInputsOfLine <= end; input += kInputsOfLine) {
        __builtin_prefetch(numbers + kAhead * kPanel * 4);  // as many bytes as in LinearCall
        __builtin_prefetch(numbers + kFarAhead * kPanel * 4, 0, 2);
        for (int step = 0; step < kInputsOfLine; ++step, numbers += kPanel, words += kRows) {
          add<kRows>(group, words, numbers);
        }
      }
      for (; input < end; ++input, numbers += kPanel, words += kRows) add<kRows>(group, words, numbers);
      for (int row = 0; row < kRows; ++row) {
        for (int part = 0; part < kVectors; ++part) sums[row][part] += group[row][part] * load(scale + part * kLanes);
      }
    }
  }

  template <int kRows>
  static void add(Floats (&group)[kRows][kVectors], const uint32_t *words, const int8_t *numbers) {
    for (int part = 0; part < kVectors; ++part) {
      const Floats weights = widened(numbers + part * kLanes);
      for (int row = 0; row < kRows; ++row) {
        float value;
        std::memcpy(&value, words + row, sizeof(value));
        group[row][part] += value * weights;
      }
    }
  }
};

// Packs numbers [outputs, inputs] and scales [outputs, groups] into panels; outputs are padded with zeros.
inline void pack_int8(const int8_t *weight, const float *scales, int8_t *panels, float *panel_scales, int64_t inputs,
                      int64_t outputs) {
  const int64_t groups = scale_groups(inputs), count = (outputs + kPanel - 1) / kPanel;
#pragma omp parallel for
  for (int64_t panel = 0; panel < count; ++panel) {
    for (int64_t column = 0; column < kPanel; ++column) {
      const int64_t output = panel * kPanel + column;
      const bool exists = output < outputs;
      for (int64_t input = 0; input < inputs; ++input) {
        panels[(panel * inputs + input) * kPanel + column] = exists ? weight[output * inputs + input] : 0;
      }
      for (int64_t group = 0; group < groups; ++group) {
        panel_scales[(panel * groups + group) * kPanel + column] = exists ? scales[output * groups + group] : 0;
      }
    }
  }
}

}  // namespace orca
#endif
