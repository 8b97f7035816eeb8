// Attention for bfloat16 on AMX tiles. Both products take 16 elements at a time: 16 elements of the head dimension for
// scores, the 16 slots of a block for values, whose layouts in the pools (kv_store.h, store_kv) are tiles as they are. Rows of
// increments and of prompts are multiplied alike, up to 16 at a time, so that a token has the same result in both.
#pragma once

#include "attention.h"
#include "tiles.h"

#if defined(__AMX_BF16__)

namespace orca {

constexpr int64_t kHalfWords = kTileWords / 2;  // of 16 elements of bfloat16

// For 1 to 16 rows. Tiles 0 to 3 have the sums, 4 has the rows, 5 and 6 what they are multiplied with.
struct AttentionShapes {
  TileShapes of[kTileRows + 1];

  constexpr AttentionShapes() : of() {
    for (int64_t height = 1; height <= kTileRows; ++height) {
      for (int tile : {0, 1, 2, 3}) of[height].set(tile, height, kTileWords);
      of[height].set(4, height, kHalfWords);
      for (int tile : {5, 6}) of[height].set(tile, kHalfWords, kTileWords);
    }
  }
};
constexpr AttentionShapes kAttentionShapes;

struct TileScratch : Scratch {
  Tiles tiles;
  Lines<uint32_t> rest;  // the words of a block's first values, and zeros

  explicit TileScratch(int64_t head_dim) : Scratch(head_dim), rest(kHalfWords * head_dim) {}
};

class TileAttentionItem : public AttentionItem<BFloat16> {
 public:
  using Memory = TileScratch;

  TileAttentionItem(const AttentionCall<BFloat16, BFloat16> &call, const Item &item, TileScratch &scratch)
      : AttentionItem(call, item, scratch), tiles_(scratch.tiles), rest_(scratch.rest.data()) {}

 private:
  static constexpr int kBlocks = kTile / kBlock;  // of a tile of slots

  // Up to 16 rows of one key/value head, and the slots of a tile that they attend to.
  struct Rows {
    int64_t first;
    int count, slots;
  };

  void add_tile(int64_t tile, int slots) override {
    Rows groups[kRows];
    int count = 0;
    for (int64_t first = 0; first < num_rows_; first += item_.num_rows) {  // a key/value head at a time
      for (int64_t row = first; row < first + item_.num_rows; row += kTileRows) {
        const int height = static_cast<int>(std::min<int64_t>(kTileRows, first + item_.num_rows - row));
        const int seen = static_cast<int>(std::min<int64_t>(slots, position(row + height - 1) + 1 - tile));
        if (seen <= 0 || (shape_.window && position(row) - shape_.window >= tile + seen - 1)) continue;
        groups[count++] = {row, height, seen};
      }
    }
    const int together = item_.num_rows <= kDirect ? 1 : count;  // increments are limited by memory
    for (int i = 0; i < count; i += together) add_groups(groups + i, together, tile);
  }

  // Computes the scores of all groups, then all weights, then the values: tiles cannot be loaded without a delay from
  // memory that has just been written.
  void add_groups(const Rows *groups, int count, int64_t tile) {
    for (int i = 0; i < count; ++i) score(groups[i], tile);
    for (int i = 0; i < count; ++i) {
      find_tops(groups[i].first, groups[i].count, tile, groups[i].slots);
      for (int row = 0; row < groups[i].count; ++row) weigh(groups[i].first + row, tile, groups[i].slots);
    }
    for (int i = 0; i < count; ++i) add_values(groups[i], tile);
  }

  // The blocks of a pool with the slots of a tile. In place of blocks without such a slot there is the first one.
  void find_blocks(const BFloat16 *pool, const Rows &rows, int64_t tile, const uint32_t *(&blocks)[kBlocks]) const {
    for (int part = 0; part < kBlocks; ++part) {
      const int place = part * kBlock < rows.slots ? part * kBlock : 0;
      blocks[part] = block(pool, kv_head(rows.first), tile + place);
    }
  }

  void add_values(const Rows &rows, int64_t tile) {
    const uint32_t *values[kBlocks];
    find_blocks(call_.value_pool, rows, tile, values);
    tiles_.configure(&kAttentionShapes.of[rows.count]);
    if (rows.slots % kBlock) replace_unwritten(values[rows.slots / kBlock], rows.slots % kBlock);
    const uint32_t *weights = &scratch_.weights[rows.first * kTile / kWidth];
    float *to = &scratch_.accumulated[rows.first * dim_];
    finish_writes(weights);
    int64_t d = 0;
    for (; d + 4 * kLanes <= dim_; d += 4 * kLanes) add_columns<4>(to + d, weights, values, d, rows.slots);
    for (; d < dim_; d += kLanes) add_columns<1>(to + d, weights, values, d, rows.slots);
  }

  // Computes the scores of a tile's slots. Those of slots that were never written may have any value.
  void score(const Rows &rows, int64_t tile) {
    const uint32_t *keys[kBlocks];
    find_blocks(call_.key_pool, rows, tile, keys);
    if (item_.num_rows <= kDirect) prefetch(rows, tile);
    tiles_.configure(&kAttentionShapes.of[rows.count]);
    const uint32_t *query = &scratch_.queries[rows.first * steps_];
    finish_writes(query);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps_; step += kHalfWords) {
      _tile_loadd(4, query + step, steps_ * 4);
      _tile_loadd(5, keys[0] + step * kBlock, kTileBytes);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, keys[1] + step * kBlock, kTileBytes);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(5, keys[2] + step * kBlock, kTileBytes);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(6, keys[3] + step * kBlock, kTileBytes);
      _tile_dpbf16ps(3, 4, 6);
    }
    float *scores = &scratch_.scores[rows.first * kTile];
    _tile_stored(0, scores, kTile * 4);
    _tile_stored(1, scores + kBlock, kTile * 4);
    _tile_stored(2, scores + 2 * kBlock, kTile * 4);
    _tile_stored(3, scores + 3 * kBlock, kTile * 4);
  }

  // Adds the weighted values of a tile's slots to kParts vectors of each row's output.
  template <int kParts>
  void add_columns(float *to, const uint32_t *weights, const uint32_t *const (&blocks)[kBlocks], int64_t column,
                   int slots) {
    const int64_t stride = dim_ * 4;
    _tile_loadd(0, to, stride);
    if constexpr (kParts == 4) {
      _tile_loadd(1, to + kLanes, stride);
      _tile_loadd(2, to + 2 * kLanes, stride);
      _tile_loadd(3, to + 3 * kLanes, stride);
    }
    for (int place = 0; place < slots; place += kBlock) {
      const uint32_t *values = blocks[place / kBlock] + column;
      _tile_loadd(4, weights + place / kWidth, kTile * 2);
      _tile_loadd(5, values, stride);
      _tile_dpbf16ps(0, 4, 5);
      if constexpr (kParts == 4) {
        _tile_loadd(6, values + kLanes, stride);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, values + 2 * kLanes, stride);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, values + 3 * kLanes, stride);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
    _tile_stored(0, to, stride);
    if constexpr (kParts == 4) {
      _tile_stored(1, to + kLanes, stride);
      _tile_stored(2, to + 2 * kLanes, stride);
      _tile_stored(3, to + 3 * kLanes, stride);
    }
  }

  // Has a block's values copied, with zeros for those after the first `slots`, whose weight 0 would not hide a NaN.
  void replace_unwritten(const uint32_t *&values, int slots) {
    const int64_t whole = slots / kWidth * dim_;
    std::copy_n(values, whole, rest_);
    std::fill(rest_ + whole, rest_ + kHalfWords * dim_, 0);
    for (int64_t d = whole; slots % kWidth && d < whole + dim_; ++d) rest_[d] = values[d] & 0xffff;
    values = rest_;
  }

  // Increment phase: prefetches the values of a tile and the keys of the next one.
  void prefetch(const Rows &rows, int64_t tile) {
    const int64_t row = rows.first;
    const uint32_t *values[kBlocks];
    find_blocks(call_.value_pool, rows, tile, values);
    for (int64_t step = 0; step < steps_; ++step) {
      for (const uint32_t *block : values) __builtin_prefetch(block + step * kBlock, 0, 2);
    }
    for (int64_t place = tile + kTile; place < std::min<int64_t>(position(row) + 1, tile + 2 * kTile); place += kBlock) {
      const uint32_t *keys = block(call_.key_pool, kv_head(row), place);
      for (int64_t step = 0; step < steps_; ++step) __builtin_prefetch(keys + step * kBlock, 0, 2);
    }
  }

  Tiles &tiles_;
  uint32_t *rest_;
};

}  // namespace orca
#endif
