// Attention of every request of an iteration in one call (the paper, section 5: one kernel whose thread blocks belong to
// different requests). The work is cut into items of up to 64 rows of one request; a row is one token and one of its
// query heads. An item of a prompt is one key/value head and many tokens, which share every key and value that is
// loaded. An item of an increment is one token and many heads, so that memory is read in the order in which it lies.
// An item finds its request through a table, and threads take items as they become free.
#pragma once

#include <omp.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "vector.h"

namespace orca {

constexpr int kBlock = kLanes;  // slots per block of the pools: a block's scores are one vector
constexpr int kTile = 64;    // slots that are converted at a time
constexpr int kRows = 64;    // rows of an item
constexpr int kGroup = 8;    // rows that share a pass over a tile
constexpr int kDirect = 3;   // up to so many rows, converting a tile costs more than it saves

struct AttentionShape {
  int64_t num_requests, num_heads, num_kv_heads, head_dim, table_width, query_stride;
  int64_t window;  // 0 for none
  float scale;
};

// Rows `first_row` to `first_row` + `num_rows` of each of `num_kv_heads` key/value heads.
struct Item {
  int64_t request, first_kv_head, num_kv_heads, first_row, num_rows;
};

template <typename T>
struct AttentionCall {
  AttentionShape shape;
  const T *query, *key_pool, *value_pool;  // query [S] rows of query_stride, pools [B, G, D, 16] and [B, G, 16, D]
  const int64_t *query_start, *context_length, *block_table;
  T *output;  // [S, N, D]
};

// What one thread needs, allocated once per thread and call.
struct Scratch {
  std::vector<float> keys, values, queries, accumulated, scores, top, total;

  explicit Scratch(int64_t head_dim)
      : keys(head_dim * kTile), values(head_dim * kTile), queries(kRows * head_dim), accumulated(kRows * head_dim),
        scores(kRows * kTile), top(kRows), total(kRows) {}
};

template <typename T>
class AttentionItem {
 public:
  AttentionItem(const AttentionCall<T> &call, const Item &item, Scratch &scratch)
      : call_(call), shape_(call.shape), item_(item), scratch_(scratch), heads_(shape_.num_heads / shape_.num_kv_heads),
        start_(call.query_start[item.request]), context_(call.context_length[item.request]),
        table_(call.block_table + item.request * shape_.table_width), num_rows_(item.num_rows * item.num_kv_heads) {}

  void run() {
    const int64_t dim = shape_.head_dim;
    for (int64_t row = 0; row < num_rows_; ++row) {
      const T *query = call_.query + (start_ + token(row)) * shape_.query_stride + head(row) * dim;
      for (int64_t d = 0; d < dim; d += kLanes) {
        store(&scratch_.queries[row * dim + d], load(query + d) * shape_.scale);
        store(&scratch_.accumulated[row * dim + d], Floats{});
      }
      scratch_.top[row] = -std::numeric_limits<float>::infinity();
      scratch_.total[row] = 0;
    }
    const int64_t end = position(num_rows_ - 1) + 1;
    const int64_t begin = shape_.window ? std::max<int64_t>(0, position(0) - shape_.window + 1) / kTile * kTile : 0;
    for (int64_t tile = begin; tile < end; tile += kTile) {
      const int slots = static_cast<int>(std::min<int64_t>(kTile, end - tile));
      if (item_.num_rows <= kDirect) {
        direct(tile, slots);
        continue;
      }
      for (int64_t first = 0; first < num_rows_; first += item_.num_rows) {  // a key/value head at a time
        convert(kv_head(first), tile, slots);
        for (int64_t row = first; row < first + item_.num_rows; row += kGroup) {
          grouped(row, std::min<int64_t>(kGroup, first + item_.num_rows - row), tile, slots);
        }
      }
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      T *output = call_.output + ((start_ + token(row)) * shape_.num_heads + head(row)) * dim;
      const float inverse = 1 / scratch_.total[row];
      for (int64_t d = 0; d < dim; d += kLanes) store(output + d, load(&scratch_.accumulated[row * dim + d]) * inverse);
    }
  }

 private:
  int64_t kv_head(int64_t row) const { return item_.first_kv_head + row / item_.num_rows; }
  int64_t token(int64_t row) const { return (item_.first_row + row % item_.num_rows) / heads_; }
  int64_t head(int64_t row) const {
    return kv_head(row) * heads_ + (item_.first_row + row % item_.num_rows) % heads_;
  }
  int64_t position(int64_t row) const { return context_ + token(row); }

  // What a head keeps in the block that holds slot `place`.
  const T *block(const T *pool, int64_t kv_head, int64_t place) const {
    return pool + (table_[place / kBlock] * shape_.num_kv_heads + kv_head) * kBlock * shape_.head_dim;
  }

  // Slots of a tile that a row sees: from `first` to `last`, relative to the tile.
  void visible(int64_t row, int64_t tile, int slots, int &first, int &last) const {
    const int64_t here = position(row);
    last = static_cast<int>(std::min<int64_t>(slots, here + 1 - tile));
    first = shape_.window ? static_cast<int>(std::max<int64_t>(0, here - shape_.window + 1 - tile)) : 0;
  }

  // Copies a tile's blocks as floats. Slots beyond `slots` may hold anything: as keys they are masked, as values they
  // are not read.
  void convert(int64_t kv_head, int64_t tile, int slots) {
    const int64_t size = shape_.head_dim * kBlock;
    for (int place = 0; place < slots; place += kBlock) {
      const T *key = block(call_.key_pool, kv_head, tile + place);
      const T *value = block(call_.value_pool, kv_head, tile + place);
      float *keys = &scratch_.keys[place * shape_.head_dim], *values = &scratch_.values[place * shape_.head_dim];
      for (int64_t i = 0; i < size; i += kLanes) {
        store(keys + i, load(key + i));
        store(values + i, load(value + i));
      }
    }
  }

  // Turns a row's scores into weights and makes room for a new maximum in what is accumulated.
  void weigh(int64_t row, float *scores, int first, int last) {
    for (int place = 0; place < first; ++place) scores[place] = -std::numeric_limits<float>::infinity();
    for (int place = last; place < kTile; ++place) scores[place] = -std::numeric_limits<float>::infinity();
    Floats tops = load(scores);
    for (int place = kLanes; place < kTile; place += kLanes) tops = larger(tops, load(scores + place));
    const float before = scratch_.top[row], top = std::max(before, largest(tops));
    Floats sums{};
    for (int place = 0; place < kTile; place += kLanes) {
      const Floats weights = exponential(load(scores + place) - top);
      store(scores + place, weights);
      sums += weights;
    }
    const float shrink = before == top ? 1.0f : std::exp(before - top);
    scratch_.total[row] = scratch_.total[row] * shrink + sum(sums);
    scratch_.top[row] = top;
    if (shrink != 1.0f) {
      float *accumulated = &scratch_.accumulated[row * shape_.head_dim];
      for (int64_t d = 0; d < shape_.head_dim; d += kLanes) store(accumulated + d, load(accumulated + d) * shrink);
    }
  }

  // Every row by itself, straight from the pools in the order in which they lie: the increment phase.
  void direct(int64_t tile, int slots) {
    const int64_t dim = shape_.head_dim;
    for (int place = 0; place < slots; place += kBlock) {
      for (int64_t row = 0; row < num_rows_; ++row) {
        const T *key = block(call_.key_pool, kv_head(row), tile + place);
        const float *query = &scratch_.queries[row * dim];
        Floats parts[4] = {};
        for (int64_t d = 0; d < dim; d += 4) {
          for (int part = 0; part < 4; ++part) parts[part] += query[d + part] * load(key + (d + part) * kBlock);
        }
        store(&scratch_.scores[row * kTile + place], (parts[0] + parts[1]) + (parts[2] + parts[3]));
      }
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      int first, last;
      visible(row, tile, slots, first, last);
      float *scores = &scratch_.scores[row * kTile];
      if (last > first) {
        weigh(row, scores, first, last);
      } else {
        std::fill(scores, scores + kTile, 0.0f);
      }
    }
    for (int place = 0; place < slots; place += kBlock) {
      for (int64_t row = 0; row < num_rows_; ++row) {
        const T *value = block(call_.value_pool, kv_head(row), tile + place);
        const float *weights = &scratch_.scores[row * kTile + place];
        float *accumulated = &scratch_.accumulated[row * dim];
        const int count = std::min(kBlock, slots - place);
        int64_t d = 0;
        for (; d + 4 * kLanes <= dim; d += 4 * kLanes) accumulate<4>(accumulated + d, weights, value + d, count);
        for (; d < dim; d += kLanes) accumulate<1>(accumulated + d, weights, value + d, count);
      }
    }
  }

  // Adds weighted values, `kParts` vectors of the head at a time: their sums do not wait for each other.
  template <int kParts>
  void accumulate(float *to, const float *weights, const T *value, int count) const {
    Floats found[kParts];
    for (int part = 0; part < kParts; ++part) found[part] = load(to + part * kLanes);
    for (int slot = 0; slot < count; ++slot, value += shape_.head_dim) {
      for (int part = 0; part < kParts; ++part) found[part] += weights[slot] * load(value + part * kLanes);
    }
    for (int part = 0; part < kParts; ++part) store(to + part * kLanes, found[part]);
  }

  // Up to eight rows over a converted tile: every key and value that is loaded serves all of them.
  void grouped(int64_t first_row, int count, int64_t tile, int slots) {
    const int64_t dim = shape_.head_dim;
    int first[kGroup], last[kGroup];
    bool any = false;
    for (int row = 0; row < count; ++row) {
      visible(first_row + row, tile, slots, first[row], last[row]);
      any |= last[row] > first[row];
    }
    if (!any) return;
    const float *queries[kGroup];
    for (int row = 0; row < kGroup; ++row) {
      queries[row] = &scratch_.queries[(first_row + std::min(row, count - 1)) * dim];
    }
    float *scores = scratch_.scores.data();
    for (int place = 0; place < slots; place += kBlock) {
      Floats found[kGroup] = {};
      const float *keys = &scratch_.keys[place * dim];
      for (int64_t d = 0; d < dim; ++d) {
        const Floats key = load(keys + d * kBlock);
        for (int row = 0; row < kGroup; ++row) found[row] += queries[row][d] * key;
      }
      for (int row = 0; row < kGroup; ++row) store(scores + row * kTile + place, found[row]);
    }
    for (int row = 0; row < count; ++row) {
      float *own = scores + row * kTile;
      if (last[row] > first[row]) {
        weigh(first_row + row, own, first[row], last[row]);
      } else {
        std::fill(own, own + kTile, 0.0f);
      }
    }
    float *accumulated = &scratch_.accumulated[first_row * dim];
    for (int64_t d = 0; d < dim; d += kLanes) {
      Floats found[kGroup] = {};
      for (int place = 0; place < slots; ++place) {
        const Floats value = load(&scratch_.values[place * dim + d]);
        for (int row = 0; row < kGroup; ++row) found[row] += scores[row * kTile + place] * value;
      }
      for (int row = 0; row < count; ++row) {
        store(accumulated + row * dim + d, load(accumulated + row * dim + d) + found[row]);
      }
    }
  }

  const AttentionCall<T> &call_;
  const AttentionShape &shape_;
  const Item item_;
  Scratch &scratch_;
  const int64_t heads_, start_, context_;
  const int64_t *table_;
  const int64_t num_rows_;
};

template <typename T>
void attention(const AttentionCall<T> &call) {
  const AttentionShape &shape = call.shape;
  const int64_t heads = shape.num_heads / shape.num_kv_heads;
  // Increments share a request's heads out so that every thread has something to do, and no further.
  const int64_t shares = std::max<int64_t>(1, 2 * omp_get_max_threads() / shape.num_requests);
  const int64_t together = std::clamp<int64_t>(shape.num_kv_heads / shares, 1, std::max<int64_t>(1, kRows / heads));
  std::vector<Item> items;
  for (int64_t request = 0; request < shape.num_requests; ++request) {
    const int64_t rows = (call.query_start[request + 1] - call.query_start[request]) * heads;
    const int64_t kv_heads = rows == heads ? together : 1;
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; kv_head += kv_heads) {
      for (int64_t row = 0; row < rows; row += kRows) {
        items.push_back({request, kv_head, std::min(kv_heads, shape.num_kv_heads - kv_head), row,
                         std::min<int64_t>(kRows, rows - row)});
      }
    }
  }
#pragma omp parallel
  {
    Scratch scratch(shape.head_dim);
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); ++index) {
      AttentionItem<T>(call, items[index], scratch).run();
    }
  }
}

}  // namespace orca
