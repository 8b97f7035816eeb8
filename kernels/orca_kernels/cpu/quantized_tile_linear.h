// Weights of eight or four bits with rows of bfloat16 (quantized_linear.h) on AMX tiles. Numbers less their zero points
// are whole and at most 256, so that they are exact in bfloat16. A group's sum is one chain of sums of 32 products.
#pragma once

#include "grouped_tile_linear.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)

namespace orca {

// How a format's numbers become words of two bfloat16: row r has those of the inputs 2 x r and 2 x r + 1 of each
// output. `unpack` returns the rows that it has written; kZeros: there are zero points. After the last input they may have
// any finite numbers, because a row of x has zeros there.
template <typename Format>
struct BFloat16Numbers;

template <>
struct BFloat16Numbers<Int8> {
  template <bool kZeros>
  static int64_t unpack(const int8_t *numbers, int64_t inputs, const float *zeros, uint32_t *to, Ahead &shared) {
    Ahead ahead = shared;
    Floats less[kVectors];
    for (int part = 0; kZeros && part < kVectors; ++part) less[part] = load(zeros + part * kLanes);
    const auto bits = [&](const int8_t *from, int part) {
      const Floats number = widened(from + part * kLanes);
      return reinterpreted<Words>(kZeros ? number - less[part] : number);
    };
    int64_t row = 0;
    for (; row < inputs / 2; ++row, numbers += 2 * kPanel) {
      ahead.fetch(numbers);
      for (int part = 0; part < kVectors; ++part) {
        const Words second = bits(numbers + kPanel, part) & 0xffff0000;
        store_as(unpacked_word(to, row, part), bits(numbers, part) >> 16 | second);
      }
    }
    shared = ahead;
    if (inputs % 2 == 0) return row;
    for (int part = 0; part < kVectors; ++part) store_as(unpacked_word(to, row, part), bits(numbers, part) >> 16);
    return row + 1;
  }
};

template <>
struct BFloat16Numbers<Int4> {
  template <bool kZeros>
  static int64_t unpack(const uint32_t *numbers, int64_t inputs, const float *zeros, uint32_t *to, Ahead &shared) {
    Ahead ahead = shared;
    // The permutation looks at five bits: without zero points those of a number and any other one, with them those of a
    // difference from -16 to 15.
    alignas(64) uint16_t table[32];
    for (int i = 0; i < 32; ++i) {
      BFloat16 number;
      put(&number, static_cast<float>(kZeros ? (i ^ 16) - 16 : i % 16 - kNibbleExcess));
      table[i] = number.bits;
    }
    const __m512i values = _mm512_load_si512(table), nibbles = _mm512_set1_epi16(15);
    __m512i less[kVectors];
    for (int part = 0; kZeros && part < kVectors; ++part) {
      const Words zero = reinterpreted<Words>(whole_numbers(load(zeros + part * kLanes)) + kNibbleExcess) & 0xffff;
      less[part] = (__m512i)(zero << 16 | zero);
    }
    constexpr int64_t kRows = kNibbles / 2;
    int64_t row = 0;
    for (; row < nibble_steps(inputs) * kRows; row += kRows, numbers += kPanel) {
      for (int part = 0; part < kVectors; ++part) {
        ahead.fetch(numbers + part * kLanes);
        const Words word = load_as<Words>(numbers + part * kLanes);
        for (int i = 0; i < kRows; ++i) {
          __m512i index = pair(word, i);
          if (kZeros) index = _mm512_sub_epi16(_mm512_and_si512(index, nibbles), less[part]);
          store_as(unpacked_word(to, row + i, part), _mm512_permutexvar_epi16(index, values));
        }
      }
    }
    shared = ahead;
    return row;
  }

 private:
  // The numbers of a word with only `row`'s pair of inputs in the lowest bits of its halves.
  static ORCA_INLINE __m512i pair(Words word, int row) {
    const __m512i even = (__m512i)(word >> (8 * row));
    const __m512i odd = (__m512i)(row < 2 ? word << (12 - 8 * row) : word >> (8 * row - 12));
    return _mm512_mask_blend_epi16(0xaaaaaaaa, even, odd);
  }
};

template <typename Format>
struct QuantizedTiles : QuantizedCall<BFloat16, Format> {
  using GroupSum = float;
  using Number = typename Format::Word;
  static constexpr int64_t kStepInputs = 2 * kTileWords;  // of a tile

  static void multiply_0() { _tile_dpbf16ps(0, 4, 6); }
  static void multiply_1() { _tile_dpbf16ps(1, 4, 7); }
  static void multiply_2() { _tile_dpbf16ps(2, 5, 6); }
  static void multiply_3() { _tile_dpbf16ps(3, 5, 7); }

  // Writes the words of a group of a row, kTileWords at a time, `stride` words apart.
  static void pack(const BFloat16 *from, int64_t inputs, uint32_t *to, int64_t stride, uint32_t *) {
    for (int64_t input = 0; input < inputs; input += kStepInputs, to += stride) {
      const int64_t count = std::min(kStepInputs, inputs - input);
      if (count < kStepInputs) std::fill_n(to, kTileWords, 0);
      std::memcpy(to, from + input, count * sizeof(BFloat16));
    }
  }

  static void unpack(const Number *numbers, int64_t inputs, const float *zeros, uint32_t *to, Ahead &ahead) {
    using Numbers = BFloat16Numbers<Format>;
    int64_t row = zeros ? Numbers::template unpack<true>(numbers, inputs, zeros, to, ahead)
                        : Numbers::template unpack<false>(numbers, inputs, zeros, to, ahead);
    for (; row % kTileRows; ++row) {
      for (int part = 0; part < kVectors; ++part) store_as(unpacked_word(to, row, part), Words{});
    }
  }

  static ORCA_INLINE Floats scaled(const float *sums, const uint32_t *) { return load(sums); }
};

template <typename Format>
void tile_linear(const QuantizedCall<BFloat16, Format> &call) {
  linear_in_segments<QuantizedTiles<Format>, GroupedTileBlocks>(QuantizedTiles<Format>{call});
}

}  // namespace orca
#endif
