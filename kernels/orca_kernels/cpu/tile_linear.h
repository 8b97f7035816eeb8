// y = x W^T + b on AMX tiles, for bfloat16 and for integers (integer_linear.h). A step of a panel has a word of inputs of
// each of its 32 outputs, so that 16 steps are two tiles of weights as they are. A block of up to 32 rows has four tiles of
// sums, which take turns, because an instruction takes longer than the next one waits. An element of y of bfloat16 is one
// chain over the inputs, of sums of 32 products (tiles.h), independent of the other rows; sums of integers are exact.
#pragma once

#include "integer_linear.h"
#include "segments.h"
#include "tiles.h"

#if defined(__AMX_BF16__)

namespace orca {

constexpr int64_t kStepBytes = kPanel * 4;  // of a panel
static_assert(kPanel == 2 * kTileWords);

// For blocks of 1 to 32 rows. Tiles 0 and 1 have the sums of the first 16 rows, 2 and 3 those of the other rows, 4 and 5
// the rows, 6 and 7 the weights.
struct LinearShapes {
  TileShapes of[2 * kTileRows + 1];

  constexpr LinearShapes() : of() {
    for (int64_t height = 1; height <= 2 * kTileRows; ++height) {
      for (int tile : {0, 1, 4}) of[height].set(tile, height < kTileRows ? height : kTileRows, kTileWords);
      for (int tile : {2, 3, 5}) of[height].set(tile, height - kTileRows, kTileWords);
      for (int tile : {6, 7}) of[height].set(tile, kTileRows, kTileWords);
    }
  }
};
constexpr LinearShapes kLinearShapes;

// The products of a type of words: their instruction, the packing of a row, and what a row has beside its words.
struct TileCall : MapCall<BFloat16> {
  static constexpr int64_t kStepInputs = 2 * kTileWords;  // of a tile
  const uint32_t *panels;                                 // [outputs / kPanel, inputs / 2, kPanel]

  static int64_t steps(int64_t inputs) { return inputs / 2; }
  static int64_t panel_words(int64_t inputs) { return steps(inputs) * kPanel; }
  const uint32_t *weights(int64_t panel) const { return panels + panel * panel_words(inputs); }

  static void multiply_first() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  static void multiply_second() {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  Factors row_factors(int64_t) const { return {}; }

  // Writes the words of `count` inputs of a row, kTileWords at a time, `stride` words apart.
  static void pack(const BFloat16 *from, int64_t count, uint32_t *to, int64_t stride, Factors &) {
    int64_t input = 0;
    for (; input + 2 * kTileWords <= count; input += 2 * kTileWords, to += stride) {
      std::memcpy(to, from + input, kTileBytes);
    }
    if (input < count) {
      std::fill_n(to, kTileWords, 0);
      std::memcpy(to, from + input, (count - input) * sizeof(BFloat16));
    }
  }

  void put(OutputPanel<BFloat16> &outputs, int64_t row, const float (&sums)[kPanel], Factors) const {
    outputs.put(row, {load(sums), load(sums + kLanes)});
  }
};

#if defined(__AMX_INT8__)
template <typename T>
struct IntegerTileCall : IntegerCall<T> {
  using Sum = int32_t;
  using Factors = RowFactors;
  static constexpr int64_t kFactorWords = sizeof(RowFactors) / 4;
  static constexpr int64_t kStepInputs = kTileWords * kWordInputs;  // of a tile

  static int64_t steps(int64_t inputs) { return integer_steps(inputs); }
  static int64_t panel_words(int64_t inputs) { return steps(inputs) * kPanel; }
  const uint32_t *weights(int64_t panel) const { return this->panels + panel * panel_words(this->inputs); }

  static void multiply_first() {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
  }
  static void multiply_second() {
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }

  // Of a row before it is packed: `pack` adds to the sum.
  Factors row_factors(int64_t place) const { return {row_scale(this->row(place), this->inputs), 0}; }

  static void pack(const T *from, int64_t count, uint32_t *to, int64_t stride, Factors &factors) {
    std::fill_n(to + steps(count) / kTileWords * stride, steps(count) % kTileWords ? kTileWords : 0, 0);
    factors.sum += quantize_part(from, count, factors.scale, [=](int64_t step, uint32_t word) {
      to[step / kTileWords * stride + step % kTileWords] = word;
    });
  }

  void put(OutputPanel<T> &outputs, int64_t row, const int32_t (&sums)[kPanel], Factors factors) const {
    put_integers(*this, outputs, row, sums, factors);
  }
};
#endif

// The blocks of rows that tiles compute; only the last one may have less than kMostRows rows. A packed block is
// [steps / kTileWords, its rows, kTileWords], so that tiles of rows are read sequentially, and then the rows' factors;
// inputs are padded with zeros.
template <typename Call>
struct TileBlocks {
  using Factors = typename Call::Factors;
  static constexpr int64_t kMostRows = 2 * kTileRows;
  const Call &call;
  int64_t first_row, rows;
  int64_t steps = row_steps(call.num_inputs()), words_of_row = row_words(call);
  int64_t count = (rows + kMostRows - 1) / kMostRows;
  Tiles tiles = {};

  static int64_t row_steps(int64_t inputs) {
    return (Call::steps(inputs) + kTileWords - 1) / kTileWords * kTileWords;
  }

  static int64_t row_words(const Call &call) { return row_steps(call.num_inputs()) + Call::kFactorWords; }

  static int64_t segment_unit(const Call &) { return Call::kStepInputs; }

  int64_t begin(int64_t block) const { return std::min(rows, block * kMostRows); }

  int64_t height(int64_t block) const { return begin(block + 1) - begin(block); }

  void pack(uint32_t *words, int64_t block) const {
    const int64_t width = height(block), first = block * kMostRows;
    words += first * words_of_row;
    for (int64_t row = 0; row < width; ++row) {
      const int64_t place = first_row + first + row;
      Factors factors = call.row_factors(place);
      Call::pack(call.row(place), call.num_inputs(), words + row * kTileWords, width * kTileWords, factors);
      if constexpr (Call::kIsSegment) call.keep(place, factors);
      std::memcpy(words + steps * width + row * Call::kFactorWords, &factors, Call::kFactorWords * 4);
    }
  }

  void compute(const uint32_t *words, int64_t block, int64_t panel) { compute(words, block, block + 1, panel); }

  // Computes the outputs of a panel for the blocks from `begin` to `end`. While tiles multiply a block, vector registers
  // compute the outputs of the block before from its sums.
  void compute(const uint32_t *words, int64_t begin, int64_t end, int64_t panel) {
    alignas(64) typename Call::Sum own[2][kMostRows][kPanel];
    OutputPanel<typename Call::Element> outputs(call, panel);
    SummedRows before{};
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = first_row + block * kMostRows;
      Sums sums = own[block % 2];
      if constexpr (Call::kIsSegment) sums = call.sums(panel, first);
      tiles.configure(&kLinearShapes.of[height(block)]);
      if (height(block) > kTileRows) {
        multiply<true>(words, block, panel, sums, outputs, before);
      } else {
        multiply<false>(words, block, panel, sums, outputs, before);
      }
      put(outputs, before, kMostRows);
      if constexpr (Call::kIsSegment) {
        if (!call.is_last()) continue;
      }
      before = {sums, factors_of(words, block), first, height(block)};
    }
    put(outputs, before, kMostRows);
  }

 private:
  using Sums = typename Call::Sum (*)[kPanel];

  // The rows of a block from `next` on, whose outputs are still to be computed from their sums.
  struct SummedRows {
    Sums sums;
    const uint32_t *factors;
    int64_t first_row, count, next = 0;
  };

  const uint32_t *factors_of(const uint32_t *words, int64_t block) const {
    return words + block * kMostRows * words_of_row + steps * height(block);
  }

  // Writes the outputs of up to `most` more rows.
  void put(OutputPanel<typename Call::Element> &outputs, SummedRows &rows, int64_t most) const {
    for (const int64_t end = std::min(rows.count, rows.next + most); rows.next < end; ++rows.next) {
      Factors factors;
      std::memcpy(&factors, rows.factors + rows.next * Call::kFactorWords, Call::kFactorWords * 4);
      call.put(outputs, rows.first_row + rows.next, rows.sums[rows.next], factors);
    }
  }

  // kBoth: the block has more than 16 rows.
  template <bool kBoth>
  void multiply(const uint32_t *words, int64_t block, int64_t panel, Sums sums,
                OutputPanel<typename Call::Element> &outputs, SummedRows &before) const {
    const int64_t width = height(block), panel_steps = Call::steps(call.num_inputs());
    // GeLU is computed beside the products. Outputs that are only rounded are written at once: stores that memory delays,
    // one beside each step, would delay the loads of tiles.
    const int64_t rows_at_once = call.activated ? before.count * kTileRows / panel_steps + 1 : kMostRows;
    const uint32_t *weights = call.weights(panel);
    // Of several blocks each fetches its part of the next panel.
    const int64_t lines_at_once = (2 * kTileRows + count - 1) / count;
    const uint32_t *next = call.weights(panel + 1) + block * (panel_steps / count) * kPanel;
    words += block * kMostRows * words_of_row;
    begin_sums<kBoth>(sums);
    int64_t step = 0;
    for (; step + kTileRows <= panel_steps; step += kTileRows, weights += kTileRows * kPanel) {
      if (count == 1) {
        for (int64_t line = 0; line < kTileRows * kPanel; line += kTileWords) {
          __builtin_prefetch(weights + kAhead * kPanel + line);
          __builtin_prefetch(weights + kFarAhead * kPanel + line, 0, 2);
        }
      } else {
        for (int64_t line = 0; line < lines_at_once; ++line, next += kTileWords) __builtin_prefetch(next, 0, 2);
      }
      add<kBoth>(words, weights);
      words += width * kTileWords;
      put(outputs, before, rows_at_once);
    }
    if (step < panel_steps) {  // what follows in memory need not be numbers
      alignas(64) uint32_t last[kTileRows * kPanel] = {};
      std::memcpy(last, weights, (panel_steps - step) * kStepBytes);
      finish_writes(last);
      add<kBoth>(words, last);
    }
    _tile_stored(0, sums[0], kStepBytes);
    _tile_stored(1, sums[0] + kTileWords, kStepBytes);
    if constexpr (kBoth) {
      _tile_stored(2, sums[kTileRows], kStepBytes);
      _tile_stored(3, sums[kTileRows] + kTileWords, kStepBytes);
    }
  }

  template <bool kBoth>
  void begin_sums(Sums sums) const {
    if constexpr (Call::kIsSegment) {
      if (!call.is_first()) {
        _tile_loadd(0, sums[0], kStepBytes);
        _tile_loadd(1, sums[0] + kTileWords, kStepBytes);
        if constexpr (kBoth) {
          _tile_loadd(2, sums[kTileRows], kStepBytes);
          _tile_loadd(3, sums[kTileRows] + kTileWords, kStepBytes);
        }
        return;
      }
    }
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kBoth) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }

  template <bool kBoth>
  static void add(const uint32_t *words, const uint32_t *weights) {
    _tile_loadd(6, weights, kStepBytes);
    _tile_loadd(7, weights + kTileWords, kStepBytes);
    _tile_loadd(4, words, kTileBytes);
    Call::multiply_first();
    if constexpr (kBoth) {
      _tile_loadd(5, words + kTileRows * kTileWords, kTileBytes);
      Call::multiply_second();
    }
  }
};

// Found before the one of linear.h by the type of its argument.
template <typename Call>
void compute_panel(TileBlocks<Call> &blocks, const uint32_t *words, int64_t panel) {
  blocks.compute(words, 0, blocks.count, panel);
}

inline void linear(const TileCall &call) { linear_in_segments<TileCall, TileBlocks>(call); }

#if defined(__AMX_INT8__)
template <typename T>
void tile_linear(const IntegerTileCall<T> &call) {
  linear_in_segments<IntegerTileCall<T>, TileBlocks>(call);
}
#endif

}  // namespace orca
#endif
