// y = x W^T + b for weights of four bits and rows of eight bits (w4a8), in the panels of quantized_linear.h: W[output, input] =
// (number - zero[output, group]) x scale[output, group]. Each group of a row of x is quantised with its own scale when the row is packed.
// A group's sum of products is an exact integer. Its float, times the scales of row and weight, is added to the sum of the
// groups before it, so that an output is the same for any instructions and beside any other rows.
#pragma once

#include "integer_linear.h"
#include "quantized_linear.h"

#if defined(ORCA_MULTIPLY_ADD)

namespace orca {

constexpr int64_t kNibbles = Int4::kInputs;  // of a word of a panel
constexpr int32_t kNibbleExcess = 8;         // of a number in a panel
constexpr int64_t kNibbleWords = 2;          // of a row for these: the bytes of the even inputs, and of the odd ones
#if defined(__AVX512F__)
constexpr int kGroupedRowsAtOnce = kRowsAtOnce;
#else
constexpr int kGroupedRowsAtOnce = 4;  // beside the sums, registers hold both halves of the panel's words
#endif

inline int64_t nibble_steps(int64_t inputs) { return (inputs + kNibbles - 1) / kNibbles; }

template <typename T>
struct GroupedIntegerCall : MapCall<T> {
  const uint32_t *panels;  // [outputs / kPanel, Int4::words(inputs)]
  const float *scales;     // [outputs / kPanel, groups, kPanel]
  const float *zeros;      // the same shape, or null: all are 0
  int64_t group;           // inputs with a common scale, a multiple of kNibbles

  static int64_t panel_words(int64_t inputs) { return Int4::words(inputs); }
  const uint32_t *weights(int64_t panel) const { return panels + panel * panel_words(this->inputs); }
  // Of the scales and zeros of the panel's first group.
  int64_t first_scale(int64_t panel) const { return panel * scale_groups(this->inputs, group) * kPanel; }
};

// Adds the products of `kRows` rows and one panel. `words` has the rows' words interleaved, then their RowFactors
// [groups, kRows]. Inlined, so that the instructions of the caller are used.
template <typename Products, int kRows, typename T>
__attribute__((always_inline)) inline void add_groups(const GroupedIntegerCall<T> &call, const uint32_t *words,
                                                      int64_t panel, Ahead ahead, float (&results)[kRows][kPanel]) {
  const uint32_t *weights = call.weights(panel);
  int64_t place = call.first_scale(panel);
  const uint32_t *factors = words + nibble_steps(call.inputs) * kNibbleWords * kRows;
  for (int64_t first = 0; first < call.inputs; first += call.group, place += kPanel) {
    RowFactors of_rows[kRows];
    std::memcpy(of_rows, factors, sizeof(of_rows));
    factors += sizeof(of_rows) / 4;
    Ints sums[kRows][kVectors];
    ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        const int32_t sum = static_cast<int32_t>(of_rows[row].sum);
        sums[row][part] = Ints{} - kNibbleExcess * sum;
        if (call.zeros) {
          sums[row][part] = sums[row][part] - whole_numbers(load(call.zeros + place + part * kLanes)) * sum;
        }
      }
    }
    const int64_t steps = nibble_steps(std::min(call.group, call.inputs - first));
    for (int64_t step = 0; step < steps; ++step, weights += kPanel, words += kNibbleWords * kRows) {
      for (int part = 0; part < kVectors; ++part) ahead.fetch(weights + part * kLanes);
      Words even[kVectors], odd[kVectors];
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        const Words both = load_as<Words>(weights + part * kLanes);
        even[part] = both & 0x0f0f0f0f;
        odd[part] = (both >> 4) & 0x0f0f0f0f;
      }
      ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
        ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
          sums[row][part] = Products::add(sums[row][part], even[part], odd[part], words[row], words[kRows + row]);
        }
      }
    }
    ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        float *to = results[row] + part * kLanes;
        const Floats value = floats(sums[row][part]) * splat(of_rows[row].scale);
        store_as(to, multiply_add(value, load(call.scales + place + part * kLanes), load_as<Floats>(to)));
      }
    }
  }
}

// Multiplies bytes from 0 to 15 by signed bytes. The sum of four products fits into sixteen bits.
struct NibbleProducts {
  static ORCA_INLINE Ints add(Ints to, Words even, Words odd, uint32_t even_inputs, uint32_t odd_inputs) {
#if defined(__AVX512F__)
    const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16((__m512i)even, _mm512_set1_epi32(even_inputs)),
                                           _mm512_maddubs_epi16((__m512i)odd, _mm512_set1_epi32(odd_inputs)));
    return (Ints)_mm512_add_epi32((__m512i)to, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#else
    ORCA_REGISTERS(i) {
#if defined(__AVX2__)
      const __m256i pairs = _mm256_add_epi16(
          _mm256_maddubs_epi16((__m256i)even.registers[i], _mm256_set1_epi32(even_inputs)),
          _mm256_maddubs_epi16((__m256i)odd.registers[i], _mm256_set1_epi32(odd_inputs)));
      const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
      to.registers[i] = (Ints::Register)_mm256_add_epi32((__m256i)to.registers[i], products);
#else
      const int8x16_t left[2] = {(int8x16_t)even.registers[i], (int8x16_t)odd.registers[i]};
      const int8x16_t right[2] = {(int8x16_t)vdupq_n_u32(even_inputs), (int8x16_t)vdupq_n_u32(odd_inputs)};
      const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(left[0]), vget_low_s8(right[0])), vget_low_s8(left[1]),
                                     vget_low_s8(right[1]));
      const int16x8_t high = vmlal_high_s8(vmull_high_s8(left[0], right[0]), left[1], right[1]);
      const int32x4_t products = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
      to.registers[i] = (Ints::Register)vaddq_s32((int32x4_t)to.registers[i], products);
#endif
    }
    return to;
#endif
  }

  template <int kRows, typename T>
  static void multiply(const GroupedIntegerCall<T> &call, const uint32_t *words, int64_t panel, Ahead ahead,
                       float (&results)[kRows][kPanel]) {
    add_groups<NibbleProducts, kRows>(call, words, panel, ahead, results);
  }
};

#if defined(ORCA_VNNI)
struct NibbleByteProducts {
  ORCA_VNNI static Ints add(Ints to, Words even, Words odd, uint32_t even_inputs, uint32_t odd_inputs) {
    return ByteProducts::add(ByteProducts::add(to, even, even_inputs), odd, odd_inputs);
  }

  template <int kRows, typename T>
  ORCA_VNNI static void multiply(const GroupedIntegerCall<T> &call, const uint32_t *words, int64_t panel, Ahead ahead,
                                 float (&results)[kRows][kPanel]) {
    add_groups<NibbleByteProducts, kRows>(call, words, panel, ahead, results);
  }
};
#endif

// Blocks of rows of nearly equal size, like RowBlocks.
template <typename T, typename Products>
struct GroupedIntegerBlocks {
  static constexpr int64_t kMostRows = kGroupedRowsAtOnce, kFactorWords = sizeof(RowFactors) / 4;
  const GroupedIntegerCall<T> &call;
  int64_t first_row, rows;
  int64_t words_of_row = row_words(call), count = (rows + kMostRows - 1) / kMostRows;

  static int64_t row_words(const GroupedIntegerCall<T> &call) {
    return nibble_steps(call.inputs) * kNibbleWords + scale_groups(call.inputs, call.group) * kFactorWords;
  }

  int64_t begin(int64_t block) const { return rows * block / count; }

  void pack(uint32_t *words, int64_t block) const {
    const int64_t first = begin(block), width = begin(block + 1) - first;
    for (int64_t row = 0; row < width; ++row) {
      const T *from = call.x + (first_row + first + row) * call.inputs;
      uint32_t *to = words + first * words_of_row + row;
      uint32_t *factors = words + first * words_of_row + nibble_steps(call.inputs) * kNibbleWords * width;
      for (int64_t input = 0; input < call.inputs; input += call.group, factors += kFactorWords * width) {
        const int64_t inputs = std::min(call.group, call.inputs - input);
        const RowFactors of_row = quantize_words(from + input, inputs, [=](int64_t step, uint32_t word) {
          uint32_t *pair = to + step / 2 * kNibbleWords * width;
          const uint32_t even = (word & 0xff) | (word >> 8 & 0xff00), odd = (word >> 8 & 0xff) | (word >> 16 & 0xff00);
          const int bits = step % 2 * 16;
          pair[0] = (bits ? pair[0] : 0) | even << bits;
          pair[width] = (bits ? pair[width] : 0) | odd << bits;
        });
        std::memcpy(factors + row * kFactorWords, &of_row, sizeof(of_row));
        to += nibble_steps(inputs) * kNibbleWords * width;
      }
    }
  }

  template <int kRows = kGroupedRowsAtOnce>
  void compute_rows(const uint32_t *words, int64_t first, int64_t width, int64_t panel, Ahead ahead) const {
    if constexpr (kRows > 1) {
      if (width < kRows) return compute_rows<kRows - 1>(words, first, width, panel, ahead);
    }
    alignas(64) float sums[kRows][kPanel] = {};
    Products::template multiply<kRows>(call, words, panel, ahead, sums);
    OutputPanel<T> outputs(call, panel);
    for (int row = 0; row < kRows; ++row) {
      outputs.put_values(first_row + first + row,
                         [&](int part, Floats bias) { return load_as<Floats>(sums[row] + part * kLanes) + bias; });
    }
  }

  void compute(const uint32_t *words, int64_t block, int64_t panel) const {
    const int64_t first = begin(block), bytes = call.panel_words(call.inputs) * sizeof(uint32_t);
    const Ahead ahead(call.weights(panel), bytes, block, count);
    compute_rows(words + first * words_of_row, first, begin(block + 1) - first, panel, ahead);
  }
};

}  // namespace orca
#endif
