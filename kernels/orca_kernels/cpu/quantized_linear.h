// y = x W^T + b for weights of eight or four bits: W[output, input] = (number - zero[output, group]) x scale[output, group],
// groups of `group` inputs, a multiple of 8. Numbers are widened to floats in registers, and rows of bfloat16 when they are
// packed. The sum of a group is multiplied by its scale and added to the sum of the groups before it.
#pragma once

#include "linear.h"

#if defined(ORCA_MULTIPLY_ADD)

namespace orca {

inline int64_t scale_groups(int64_t inputs, int64_t group) { return (inputs + group - 1) / group; }

// A format says how a panel stores the numbers of its outputs: blocks of kInputs inputs, of kWords words each. `add` adds the
// products of numbers less `zeros`, where kZeros says that there are zero points.

// A byte for each number: [inputs, kPanel].
struct Int8 {
  using Word = int8_t;
  static constexpr int64_t kInputs = Ahead::kLineBytes / kPanel, kWords = Ahead::kLineBytes;

  static int64_t words(int64_t inputs) { return inputs * kPanel; }

  static void put(Word *panel, int64_t input, int64_t column, int number) {
    panel[input * kPanel + column] = static_cast<Word>(number);
  }

  template <bool kZeros, int kRows>
  static ORCA_INLINE void add(Floats (&group)[kRows][kVectors], const uint32_t *words, const Word *numbers,
                              int64_t inputs, const Floats (&zeros)[kVectors]) {
    for (int64_t input = 0; input < inputs; ++input, numbers += kPanel, words += kRows) {
      Floats weights[kVectors];
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        const Floats wide = widened(numbers + part * kLanes);
        weights[part] = kZeros ? wide - zeros[part] : wide;
      }
      add_input<kRows>(group, words, weights);
    }
  }
};

// Four bits for each number, plus 8: a word has eight successive inputs of an output, [inputs / 8, kPanel].
struct Int4 {
  using Word = uint32_t;
  static constexpr int64_t kInputs = 8, kWords = kPanel;

  static int64_t words(int64_t inputs) { return (inputs + kInputs - 1) / kInputs * kPanel; }

  static void put(Word *panel, int64_t input, int64_t column, int number) {
    panel[input / kInputs * kPanel + column] |= static_cast<Word>(number + 8) << (4 * (input % kInputs));
  }

  template <bool kZeros, int kRows>
  static ORCA_INLINE void add(Floats (&group)[kRows][kVectors], const uint32_t *words, const Word *numbers,
                              int64_t inputs, const Floats (&zeros)[kVectors]) {
    Words left[kVectors];
    ORCA_UNROLL for (int part = 0; part < kVectors; ++part) left[part] = load_as<Words>(numbers + part * kLanes);
    for (int64_t input = 0; input < inputs; ++input, words += kRows) {
      Floats weights[kVectors];
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        const Floats wide = lowest_four_bits(left[part]);
        weights[part] = kZeros ? wide - zeros[part] : wide;
        left[part] = left[part] >> 4;
      }
      add_input<kRows>(group, words, weights);
    }
  }
};

template <typename T, typename Format>
struct QuantizedCall : MapCall<T> {
  using Row = float;
  const typename Format::Word *panels;  // [outputs / kPanel, Format::words(inputs)]
  const float *scales;                  // [outputs / kPanel, groups, kPanel]
  const float *zeros;                   // the same shape, or null: all are 0
  int64_t group;                        // inputs with a common scale

  static int64_t panel_words(int64_t inputs) { return Format::words(inputs); }
  const typename Format::Word *weights(int64_t panel) const { return panels + panel * panel_words(this->inputs); }
  // Of the scales and zeros of the panel's first group.
  int64_t first_scale(int64_t panel) const { return panel * scale_groups(this->inputs, group) * kPanel; }

  // Adds the products of `kRows` rows and one panel; see LinearCall::add.
  template <int kRows>
  void multiply(const uint32_t *words, int64_t panel, Ahead ahead, Floats (&sums)[kRows][kVectors]) const {
    zeros ? multiply_less<true, kRows>(words, panel, ahead, sums)
          : multiply_less<false, kRows>(words, panel, ahead, sums);
  }

 private:
  template <bool kZeros, int kRows>
  void multiply_less(const uint32_t *words, int64_t panel, Ahead ahead, Floats (&sums)[kRows][kVectors]) const {
    constexpr int64_t kInputs = Format::kInputs, kBytes = Format::kWords * sizeof(typename Format::Word);
    const typename Format::Word *numbers = weights(panel);
    int64_t place = first_scale(panel);
    for (int64_t first = 0; first < this->inputs; first += group, place += kPanel) {
      const int64_t end = std::min(this->inputs, first + group);
      Floats of_group[kVectors] = {};
      for (int part = 0; kZeros && part < kVectors; ++part) of_group[part] = load(zeros + place + part * kLanes);
      Floats products[kRows][kVectors] = {};
      int64_t input = first;
      for (; input + kInputs <= end; input += kInputs, words += kInputs * kRows, numbers += Format::kWords) {
        for (int64_t line = 0; line < kBytes; line += Ahead::kLineBytes) {
          ahead.fetch(reinterpret_cast<const char *>(numbers) + line);
        }
        Format::template add<kZeros>(products, words, numbers, kInputs, of_group);
      }
      if (input < end) {  // only in the last group
        Format::template add<kZeros>(products, words, numbers, end - input, of_group);
      }
      ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
        ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
          sums[row][part] = multiply_add(products[row][part], load(scales + place + part * kLanes), sums[row][part]);
        }
      }
    }
  }
};

// Packs numbers [outputs, inputs] into panels of zeros; outputs are padded with zeros.
template <typename Format>
void pack_quantized(const int8_t *weight, typename Format::Word *panels, int64_t inputs, int64_t outputs) {
  const int64_t count = (outputs + kPanel - 1) / kPanel;
#pragma omp parallel for
  for (int64_t panel = 0; panel < count; ++panel) {
    typename Format::Word *to = panels + panel * Format::words(inputs);
    for (int64_t column = 0; column < kPanel; ++column) {
      const int64_t output = panel * kPanel + column;
      for (int64_t input = 0; output < outputs && input < inputs; ++input) {
        Format::put(to, input, column, weight[output * inputs + input]);
      }
    }
  }
}

}  // namespace orca
#endif
