// y = x W^T + b for weights and rows of eight bits (w8a8): W[output, input] = number x scale[output], and each row of x is
// quantised with its own scale when it is packed. Sums of products are exact integers, so that they are the same for any
// instructions and beside any other rows. A step of a panel is a word for each output: four inputs' numbers plus 128,
// because the instructions for bytes multiply unsigned by signed ones. What the 128 add is subtracted from the start:
// 128 x the sum of the row's numbers. Sums wrap at 32 bits, and fit at the end for up to 132,104 inputs.
#pragma once

#include "linear.h"
#include "rows.h"

namespace orca {

constexpr int64_t kWordInputs = 4;  // of a word of bytes
constexpr uint32_t kExcess = 128;   // of a number in a panel
#if defined(ORCA_MULTIPLY_ADD)
constexpr int kIntegerRowsAtOnce = kRowsAtOnce;
#else
constexpr int kIntegerRowsAtOnce = 3;  // sums of a row fill four of 16 registers
#endif

inline int64_t integer_steps(int64_t inputs) { return (inputs + kWordInputs - 1) / kWordInputs; }

template <typename T>
struct IntegerCall : MapCall<T> {
  const uint32_t *panels;  // [outputs / kPanel, steps, kPanel]
  const float *scales;     // [outputs / kPanel, kPanel]
};

// Packs numbers [outputs, inputs] into panels; outputs are padded with any numbers, and scales of zero. The inputs after
// the last one may have any number: a row has zeros there.
inline void pack_integers(const int8_t *weight, uint32_t *panels, int64_t inputs, int64_t outputs) {
  const int64_t steps = integer_steps(inputs), count = (outputs + kPanel - 1) / kPanel;
#pragma omp parallel for
  for (int64_t panel = 0; panel < count; ++panel) {
    uint32_t *to = panels + panel * steps * kPanel;
    for (int64_t column = 0; column < kPanel; ++column) {
      const int64_t output = panel * kPanel + column;
      for (int64_t step = 0; step < steps; ++step) {
        uint32_t word = 0;
        if (output < outputs) {
          const int64_t input = step * kWordInputs, bytes = std::min(kWordInputs, inputs - input);
          std::memcpy(&word, weight + output * inputs + input, bytes);
        }
        to[step * kPanel + column] = word ^ 0x80808080;  // each number plus 128
      }
    }
  }
}

// What belongs to a quantised row beside its numbers.
struct RowFactors {
  float scale;
  uint32_t sum;  // of its numbers
};

// Quantises inputs of a row and calls `put(step, word)` with each four numbers; zeros follow the last one. Returns the
// sum of the numbers.
template <typename T, typename Put>
inline uint32_t quantize_part(const T *from, int64_t inputs, float scale, Put put) {
  constexpr int kWords = kLanes / kWordInputs;
  const int64_t steps = integer_steps(inputs);
  Ints total{};
  for (int64_t first = 0; first < steps; first += kWords) {
    const int64_t input = first * kWordInputs;
    const Ints numbers = scale > 0 ? row_numbers(from + input, inputs - input, scale) : Ints{};
    total = total + numbers;
    int32_t wide[kLanes];
    int8_t bytes[kLanes];
    uint32_t words[kWords];
    store_as(wide, numbers);
    for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = static_cast<int8_t>(wide[lane]);
    std::memcpy(words, bytes, sizeof(words));
    for (int word = 0; word < kWords && first + word < steps; ++word) put(first + word, words[word]);
  }
  int32_t parts[kLanes];
  store_as(parts, total);
  uint32_t sum = 0;
  for (const int32_t part : parts) sum += static_cast<uint32_t>(part);
  return sum;
}

// The same for inputs that get a scale of their own.
template <typename T, typename Put>
inline RowFactors quantize_words(const T *from, int64_t inputs, Put put) {
  const float scale = row_scale(from, inputs);
  return {scale, quantize_part(from, inputs, scale, put)};
}

// Writes a row's outputs of a panel from its sums of products, which are 128 x `sum` too large.
template <typename T>
void put_integers(const IntegerCall<T> &call, OutputPanel<T> &outputs, int64_t row, const int32_t *sums,
                  RowFactors factors) {
  const float *scales = call.scales + outputs.column;
  outputs.put_values(row, [&](int part, Floats bias) {
    const Words exact = load_as<Words>(sums + part * kLanes) - kExcess * factors.sum;
    const Floats product = floats(reinterpreted<Ints>(exact)) * splat(factors.scale);
    return multiply_add(product, load(scales + part * kLanes), bias);
  });
}

// Multiplies pairs of sixteen bits: a packed row has the bytes 0 and 2 of each four, then the bytes 1 and 3.
struct PairProducts {
  static constexpr int kWords = 2;  // of four inputs of a row

  static void put(uint32_t *to, int64_t stride, uint32_t word) {
    const auto half = [word](int byte) { return static_cast<uint16_t>(static_cast<int8_t>(word >> (8 * byte))); };
    to[0] = half(0) | static_cast<uint32_t>(half(2)) << 16;
    to[stride] = half(1) | static_cast<uint32_t>(half(3)) << 16;
  }

  static ORCA_INLINE Words factor(Words weights, int word) { return (word ? weights >> 8 : weights) & 0x00ff00ff; }

  static ORCA_INLINE Ints add(Ints to, Words factor, uint32_t word) { return add_pairs(to, factor, word); }

  template <int kRows>
  static void multiply(const uint32_t *words, const uint32_t *weights, int64_t steps, Ahead ahead,
                       int32_t (&sums)[kRows][kPanel]);
};

// Adds the products of `kRows` rows and one panel's `weights`; `words` has the rows' words interleaved. Inlined, so that
// the instructions of the caller are used.
template <typename Products, int kRows>
__attribute__((always_inline)) inline void add_integers(const uint32_t *words, const uint32_t *weights, int64_t steps,
                                                        Ahead ahead, int32_t (&results)[kRows][kPanel]) {
  Ints sums[kRows][kVectors] = {};
  for (int64_t step = 0; step < steps; ++step, weights += kPanel, words += kRows * Products::kWords) {
    for (int part = 0; part < kVectors; ++part) ahead.fetch(weights + part * kLanes);
    for (int word = 0; word < Products::kWords; ++word) {
      Words factors[kVectors];
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        factors[part] = Products::factor(load_as<Words>(weights + part * kLanes), word);
      }
      ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
        ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
          sums[row][part] = Products::add(sums[row][part], factors[part], words[word * kRows + row]);
        }
      }
    }
  }
  ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
    ORCA_UNROLL for (int part = 0; part < kVectors; ++part) store_as(results[row] + part * kLanes, sums[row][part]);
  }
}

template <int kRows>
void PairProducts::multiply(const uint32_t *words, const uint32_t *weights, int64_t steps, Ahead ahead,
                            int32_t (&sums)[kRows][kPanel]) {
  add_integers<PairProducts, kRows>(words, weights, steps, ahead, sums);
}

// VPDPBUSD, which multiplies four bytes at once: of AVX512-VNNI, or of AVX-VNNI with 256 bits. The processor may lack it,
// so only these functions are compiled for it.
#if defined(__AVX512F__)
#define ORCA_VNNI __attribute__((target("avx512vnni")))
#elif defined(__AVX2__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define ORCA_VNNI __attribute__((target("avxvnni")))
#endif

#if defined(ORCA_VNNI)
struct ByteProducts {
  static constexpr int kWords = 1;

  static void put(uint32_t *to, int64_t, uint32_t word) { *to = word; }

  static ORCA_INLINE Words factor(Words weights, int) { return weights; }

  ORCA_VNNI static Ints add(Ints to, Words factor, uint32_t word) {
#if defined(__AVX512F__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)to, (__m512i)factor, _mm512_set1_epi32(word));
#else
    for (int i = 0; i < kRegisters; ++i) {
      to.registers[i] = (Ints::Register)_mm256_dpbusd_avx_epi32(
          (__m256i)to.registers[i], (__m256i)factor.registers[i], _mm256_set1_epi32(word));
    }
    return to;
#endif
  }

  template <int kRows>
  ORCA_VNNI static void multiply(const uint32_t *words, const uint32_t *weights, int64_t steps, Ahead ahead,
                                 int32_t (&sums)[kRows][kPanel]) {
    add_integers<ByteProducts, kRows>(words, weights, steps, ahead, sums);
  }
};
#endif

// Blocks of rows of nearly equal size, like RowBlocks. A packed block has the words of its rows, [steps, words of a step,
// rows], then their RowFactors.
template <typename T, typename Products>
struct IntegerBlocks {
  static constexpr int64_t kMostRows = kIntegerRowsAtOnce, kFactorWords = sizeof(RowFactors) / 4;
  const IntegerCall<T> &call;
  int64_t first_row, rows;
  int64_t steps = integer_steps(call.inputs), words_of_row = row_words(call);
  int64_t count = (rows + kMostRows - 1) / kMostRows;

  static int64_t row_words(const IntegerCall<T> &call) {
    return integer_steps(call.inputs) * Products::kWords + kFactorWords;
  }

  int64_t begin(int64_t block) const { return rows * block / count; }

  void pack(uint32_t *words, int64_t block) const {
    const int64_t first = begin(block), width = begin(block + 1) - first;
    words += first * words_of_row;
    for (int64_t row = 0; row < width; ++row) {
      uint32_t *to = words + row;
      const RowFactors factors = quantize_words(
          call.x + (first_row + first + row) * call.inputs, call.inputs,
          [=](int64_t step, uint32_t word) { Products::put(to + step * Products::kWords * width, width, word); });
      std::memcpy(words + (words_of_row - kFactorWords) * width + row * kFactorWords, &factors, sizeof(factors));
    }
  }

  template <int kRows = kIntegerRowsAtOnce>
  void compute_rows(const uint32_t *words, int64_t first, int64_t width, int64_t panel, Ahead ahead) const {
    if constexpr (kRows > 1) {
      if (width < kRows) return compute_rows<kRows - 1>(words, first, width, panel, ahead);
    }
    alignas(64) int32_t sums[kRows][kPanel];
    Products::template multiply<kRows>(words, call.panels + panel * steps * kPanel, steps, ahead, sums);
    OutputPanel<T> outputs(call, panel);
    for (int row = 0; row < kRows; ++row) {
      RowFactors factors;
      std::memcpy(&factors, words + (words_of_row - kFactorWords) * kRows + row * kFactorWords, sizeof(factors));
      put_integers(call, outputs, first_row + first + row, sums[row], factors);
    }
  }

  void compute(const uint32_t *words, int64_t block, int64_t panel) const {
    const int64_t first = begin(block), panel_words = steps * kPanel;
    const Ahead ahead(call.panels + panel * panel_words, panel_words * sizeof(uint32_t), block, count);
    compute_rows(words + first * words_of_row, first, begin(block + 1) - first, panel, ahead);
  }
};

}  // namespace orca
