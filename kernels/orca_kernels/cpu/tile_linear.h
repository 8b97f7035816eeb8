// y = x W^T + b for bfloat16 on AMX tiles. A step of linear.h's panels has a pair of inputs of each of its 32 outputs, so
// that 16 steps are two tiles of weights as they are. A block of up to 32 rows has four tiles of sums, which take turns,
// because an instruction takes longer than the next one waits. An element of y is one chain over the inputs, of sums of
// 32 products (tiles.h), independent of the other rows.
#pragma once

#include "linear.h"
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

struct TileCall : MapCall<BFloat16> {
  const uint32_t *panels;  // [outputs / kPanel, inputs / 2, kPanel]
};

// The blocks of rows that tiles compute; only the last one may have less than kMostRows rows. A packed block is
// [inputs / 32, its rows, kTileWords], so that tiles of rows are read sequentially; inputs are padded with zeros.
struct TileBlocks {
  static constexpr int64_t kMostRows = 2 * kTileRows;
  const TileCall &call;
  int64_t first_row, rows;
  int64_t steps = row_words(call.inputs), count = (rows + kMostRows - 1) / kMostRows;
  Tiles tiles = {};

  static int64_t row_words(int64_t inputs) { return (inputs / 2 + kTileWords - 1) / kTileWords * kTileWords; }

  int64_t height(int64_t block) const { return std::min(kMostRows, rows - block * kMostRows); }

  void pack(uint32_t *words, int64_t block) const {
    const int64_t width = height(block);
    for (int64_t row = 0; row < width; ++row) {
      const BFloat16 *from = call.x + (first_row + block * kMostRows + row) * call.inputs;
      uint32_t *to = words + block * kMostRows * steps + row * kTileWords;
      int64_t input = 0;
      for (; input + 2 * kTileWords <= call.inputs; input += 2 * kTileWords, to += width * kTileWords) {
        std::memcpy(to, from + input, kTileBytes);
      }
      if (input < call.inputs) {
        std::fill_n(to, kTileWords, 0);
        std::memcpy(to, from + input, (call.inputs - input) * sizeof(BFloat16));
      }
    }
  }

  void compute(const uint32_t *words, int64_t block, int64_t panel) {
    const int64_t width = height(block), first = block * kMostRows;
    tiles.configure(&kLinearShapes.of[width]);
    alignas(64) float sums[kMostRows][kPanel];
    if (width > kTileRows) {
      multiply<true>(words + first * steps, block, panel, sums);
    } else {
      multiply<false>(words + first * steps, block, panel, sums);
    }
    OutputPanel<BFloat16> outputs(call, panel);
    for (int64_t row = 0; row < width; ++row) {
      outputs.put(first_row + first + row, {load(sums[row]), load(sums[row] + kLanes)});
    }
  }

 private:
  // kBoth: the block has more than 16 rows.
  template <bool kBoth>
  void multiply(const uint32_t *words, int64_t block, int64_t panel, float (&sums)[kMostRows][kPanel]) const {
    const int64_t width = height(block), panel_steps = call.inputs / 2;
    const uint32_t *weights = call.panels + panel * panel_steps * kPanel;
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kBoth) {
      _tile_zero(2);
      _tile_zero(3);
    }
    int64_t step = 0;
    for (; step + kTileRows <= panel_steps; step += kTileRows, weights += kTileRows * kPanel) {
      for (int64_t line = 0; block == 0 && line < kTileRows * kPanel; line += kTileWords) {  // later blocks: in caches
        __builtin_prefetch(weights + kAhead * kPanel + line);
        __builtin_prefetch(weights + kFarAhead * kPanel + line, 0, 2);
      }
      add<kBoth>(words, weights);
      words += width * kTileWords;
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
  static void add(const uint32_t *words, const uint32_t *weights) {
    _tile_loadd(6, weights, kStepBytes);
    _tile_loadd(7, weights + kTileWords, kStepBytes);
    _tile_loadd(4, words, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kBoth) {
      _tile_loadd(5, words + kTileRows * kTileWords, kTileBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
};

inline void linear(const TileCall &call) { linear<TileCall, TileBlocks>(call); }

}  // namespace orca
#endif
