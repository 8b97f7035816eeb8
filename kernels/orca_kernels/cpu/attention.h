// Attention of every request of an iteration in one call (the paper, section 5: one kernel whose thread blocks belong
// to different requests). The work is divided into items of up to 64 rows of one request; a row is one token and one of
// its query heads. An item of a prompt has one key/value head and many tokens, which share every loaded key and value.
// An item of an increment has one token and many heads, so that memory is read sequentially. Items are scheduled
// dynamically.
#pragma once

#include <omp.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "vector.h"

namespace orca {

constexpr int kBlock = kLanes;  // slots per block of the pools: a block's scores are one vector
constexpr int kTile = 64;       // slots whose scores are computed before their softmax weights
constexpr int kRows = 64;       // rows of an item
// kGroup rows share a pass over a tile, each with kAtOnce vectors of sums: as many as the registers hold.
#if defined(__AVX512F__)
constexpr int kGroup = 8, kAtOnce = 2;
#else
constexpr int kGroup = 4, kAtOnce = 1;
#endif
constexpr int kDirect = 3;      // up to this number of rows per head, rows do not share loads

struct AttentionShape {
  int64_t num_requests, num_heads, num_kv_heads, head_dim, table_width, query_stride;
  int64_t window;  // 0 for none
  float scale;
};

// Rows `first_row` to `first_row` + `num_rows` of each of `num_kv_heads` key/value heads.
struct Item {
  int64_t request, first_kv_head, num_kv_heads, first_row, num_rows;
};

// T is the element type of queries and output, E that of the pools: T, or int8_t with scales.
template <typename T, typename E>
struct AttentionCall {
  AttentionShape shape;
  const T *query;                            // [S] rows of query_stride
  const E *key_pool, *value_pool;            // see kv_store.h, store_kv and store_kv_int8
  const float *key_scales, *value_scales;    // null unless E is int8_t
  const int64_t *query_start, *context_length;
  const int32_t *block_table;
  T *output;  // [S, N, D]
};

// Working memory of one thread, allocated once per thread and call.
struct Scratch {
  Lines<uint32_t> queries, weights;  // words, see Product
  Lines<float> accumulated, scores, top, total;

  explicit Scratch(int64_t head_dim)
      : queries(kRows * head_dim), weights(kRows * kTile), accumulated(kRows * head_dim), scores(kRows * kTile),
        top(kRows + kLanes), total(kRows + kLanes) {}  // sixteen rows are loaded at a time
};

template <typename T, typename E = T>
class AttentionItem {
 public:
  using Memory = Scratch;

  AttentionItem(const AttentionCall<T, E> &call, const Item &item, Scratch &scratch)
      : call_(call), shape_(call.shape), item_(item), scratch_(scratch), heads_(shape_.num_heads / shape_.num_kv_heads),
        start_(call.query_start[item.request]), context_(call.context_length[item.request]),
        table_(call.block_table + item.request * shape_.table_width), num_rows_(item.num_rows * item.num_kv_heads),
        dim_(shape_.head_dim), steps_(dim_ / kWidth) {}

  void run() {
    for (int64_t row = 0; row < num_rows_; ++row) {
      load_query(row, call_.query + (start_ + token(row)) * shape_.query_stride + head(row) * dim_);
    }
    std::fill_n(scratch_.accumulated.begin(), num_rows_ * dim_, 0.0f);
    std::fill_n(scratch_.top.begin(), num_rows_, -std::numeric_limits<float>::infinity());
    std::fill_n(scratch_.total.begin(), num_rows_, 0.0f);
    const int64_t end = position(num_rows_ - 1) + 1;
    const int64_t begin = shape_.window ? std::max<int64_t>(0, position(0) - shape_.window + 1) / kTile * kTile : 0;
    for (int64_t tile = begin; tile < end; tile += kTile) {
      const int slots = static_cast<int>(std::min<int64_t>(kTile, end - tile));
      add_tile(tile, slots);
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      T *output = call_.output + ((start_ + token(row)) * shape_.num_heads + head(row)) * dim_;
      const float *accumulated = &scratch_.accumulated[row * dim_], inverse = 1 / scratch_.total[row];
      for (int64_t d = 0; d < dim_; d += kLanes) store(output + d, load(accumulated + d) * inverse);
    }
  }

 protected:
  using Factor = typename Product<E>::Factor;
  using Stored = typename Product<E>::Stored;
  static constexpr int kWidth = Product<E>::kWidth;
  static constexpr bool kScaled = std::is_same_v<E, int8_t>;
  static constexpr int64_t kStepsOfLine = 64 / (kBlock * sizeof(Stored));  // of a cache line

  virtual void load_query(int64_t row, const T *query) {
    auto *factors = reinterpret_cast<Factor *>(&scratch_.queries[row * steps_]);
    if constexpr (std::is_same_v<Factor, T>) {
      std::memcpy(factors, query, dim_ * sizeof(T));
    } else {
      for (int64_t d = 0; d < dim_; d += kLanes) store(factors + d, load(query + d));
    }
  }

  // Attends to a tile's first `slots` slots.
  virtual void add_tile(int64_t tile, int slots) {
    if (item_.num_rows <= kDirect) return direct(tile, slots);
    for (int64_t first = 0; first < num_rows_; first += item_.num_rows) {  // a key/value head at a time
      for (int64_t row = first; row < first + item_.num_rows; row += kGroup) {
        grouped(row, std::min<int64_t>(kGroup, first + item_.num_rows - row), tile, slots);
      }
    }
  }

  int64_t kv_head(int64_t row) const { return item_.first_kv_head + row / item_.num_rows; }
  int64_t token(int64_t row) const { return (item_.first_row + row % item_.num_rows) / heads_; }
  int64_t head(int64_t row) const {
    return kv_head(row) * heads_ + (item_.first_row + row % item_.num_rows) % heads_;
  }
  int64_t position(int64_t row) const { return context_ + token(row); }

  // Index, among the heads of all blocks, of a head's block that contains slot `place`.
  int64_t index(int64_t kv_head, int64_t place) const {
    return table_[place / kBlock] * shape_.num_kv_heads + kv_head;
  }

  // A head's words of the block that contains slot `place` (kv_store.h, store_kv).
  const Stored *block(const E *pool, int64_t kv_head, int64_t place) const {
    return reinterpret_cast<const Stored *>(pool + index(kv_head, place) * kBlock * dim_);
  }

  // The sixteen products of a query and the keys of a block, from the products with the stored keys.
  Floats scaled(Floats products, int64_t kv_head, int64_t place) const {
    if constexpr (kScaled) products = products * load(call_.key_scales + index(kv_head, place) * kBlock);
    return products;
  }

  // Slots of a tile that a row attends to: from `first` to `last`, relative to the tile.
  void visible(int64_t row, int64_t tile, int slots, int &first, int &last) const {
    const int64_t here = position(row);
    last = static_cast<int>(std::min<int64_t>(slots, here + 1 - tile));
    first = shape_.window ? static_cast<int>(std::max<int64_t>(0, here - shape_.window + 1 - tile)) : 0;
  }

  // Prepares the scores of up to sixteen rows for `weigh`: those of invisible slots become -infinity, and the accumulated
  // outputs and totals are rescaled to the rows' new maxima. Scores of slots that were never written may have any value.
  void find_tops(int64_t first_row, int count, int64_t tile, int slots) {
    float *top = &scratch_.top[first_row], *total = &scratch_.total[first_row];
    alignas(64) float tops[kLanes], shrinks[kLanes];
    std::fill_n(tops, kLanes, -std::numeric_limits<float>::infinity());
    bool grown = false;
    for (int i = 0; i < count; ++i) {
      float *scores = &scratch_.scores[(first_row + i) * kTile];
      const int end = (slots + kLanes - 1) / kLanes * kLanes;
      int first, last;
      visible(first_row + i, tile, slots, first, last);
      if (last <= first) continue;
      std::fill(scores, scores + first, -std::numeric_limits<float>::infinity());
      std::fill(scores + last, scores + end, -std::numeric_limits<float>::infinity());
      Floats of_row = load(scores);
      for (int place = kLanes; place < end; place += kLanes) of_row = larger(of_row, load(scores + place));
      tops[i] = largest(of_row) * shape_.scale;
      grown = grown || tops[i] > top[i];
    }
    if (!grown) return;
    const Floats before = load(top), now = larger(before, load(tops));
    const Floats shrink = choose(before != now, exponential(before - now), splat(1.0f));
    store(top, now);
    store(total, load(total) * shrink);
    store(shrinks, shrink);
    for (int i = 0; i < count; ++i) {
      if (shrinks[i] == 1.0f) continue;
      float *accumulated = &scratch_.accumulated[(first_row + i) * dim_];
      for (int64_t d = 0; d < dim_; d += kLanes) store(accumulated + d, load(accumulated + d) * shrinks[i]);
    }
  }

  // Turns a row's scores into softmax weights, zero for invisible slots, and adds them to its total. Calls `put` with each
  // sixteen slots' first one and weights, and returns the number of slots; if none is visible, returns 0 without calls.
  template <typename Put>
  int weigh(int64_t row, int64_t tile, int slots, Put put) {
    const float *scores = &scratch_.scores[row * kTile];
    int first, last;
    visible(row, tile, slots, first, last);
    if (last <= first) return 0;
    Floats sums{};
    const int end = (slots + kLanes - 1) / kLanes * kLanes;
    for (int place = 0; place < end; place += kLanes) {
      const Floats weight = exponential(load(scores + place) * shape_.scale - scratch_.top[row]);
      sums += weight;
      put(place, weight);
    }
    scratch_.total[row] += sum(sums);
    return end;
  }

  // Turns a row's scores into the factors of values. Integers are multiplied by the weight times their scale.
  void weigh(int64_t row, int64_t tile, int slots) {
    uint32_t *weights = &scratch_.weights[row * kTile / kWidth];
    const int written = weigh(row, tile, slots, [&](int place, Floats weight) {
      if constexpr (kScaled) {
        weight = weight * load(call_.value_scales + index(kv_head(row), tile + place) * kBlock);
      }
      store(reinterpret_cast<Factor *>(weights) + place, weight);
    });
    if (!written) std::fill_n(weights, (slots + kLanes - 1) / kLanes * kLanes / kWidth, 0);
  }

  // Increment phase: computes row by row. A score is the same chain of sums as in `grouped`, so that a token has the
  // same result in a prompt and in an increment; the blocks of a tile are independent chains, which hides latency.
  void direct(int64_t tile, int slots) {
    constexpr int kBlocks = kTile / kBlock;
    for (int64_t row = 0; row < num_rows_; ++row) {
      const Stored *keys[kBlocks], *values[kBlocks];
      int64_t places[kBlocks];
      ORCA_UNROLL for (int part = 0; part < kBlocks; ++part) {
        places[part] = tile + (part * kBlock < slots ? part * kBlock : 0);
        keys[part] = block(call_.key_pool, kv_head(row), places[part]);
        values[part] = block(call_.value_pool, kv_head(row), places[part]);
      }
      const uint32_t *query = &scratch_.queries[row * steps_];
      Floats sums[kBlocks] = {};
      for (int64_t step = 0; step < steps_; ++step) {
        ORCA_UNROLL for (int part = 0; part < kBlocks; ++part) {
          if (step % kStepsOfLine == 0) __builtin_prefetch(values[part] + step * kBlock, 0, 2);
          sums[part] = Product<E>::add(sums[part], query[step], keys[part] + step * kBlock);
        }
      }
      ORCA_UNROLL for (int part = 0; part < kBlocks; ++part) {
        store(&scratch_.scores[row * kTile + part * kBlock], scaled(sums[part], kv_head(row), places[part]));
      }
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      find_tops(row, 1, tile, slots);
      weigh(row, tile, slots);
      for (int64_t place = tile + kTile; place < std::min<int64_t>(position(row) + 1, tile + 2 * kTile); place += kBlock) {
        const Stored *keys = block(call_.key_pool, kv_head(row), place);
        for (int64_t step = 0; step < steps_; step += kStepsOfLine) __builtin_prefetch(keys + step * kBlock, 0, 2);
      }
      add_values<1>(row, 1, tile, slots);
    }
  }

  // Up to kGroup rows of one key/value head, which share every loaded key and value.
  void grouped(int64_t first_row, int count, int64_t tile, int slots) {
    slots = static_cast<int>(std::min<int64_t>(slots, position(first_row + count - 1) + 1 - tile));
    if (slots <= 0) return;
    if (shape_.window && position(first_row) - shape_.window >= tile + slots - 1) return;
    const uint32_t *queries[kGroup];
    ORCA_UNROLL for (int row = 0; row < kGroup; ++row) {
      queries[row] = &scratch_.queries[(first_row + std::min(row, count - 1)) * steps_];
    }
    float *scores = &scratch_.scores[first_row * kTile];
    for (int place = 0; place < slots; place += kAtOnce * kBlock) {
      const Stored *keys[kAtOnce];
      int64_t places[kAtOnce];
      ORCA_UNROLL for (int part = 0; part < kAtOnce; ++part) {
        places[part] = tile + (place + part * kBlock < slots ? place + part * kBlock : place);
        keys[part] = block(call_.key_pool, kv_head(first_row), places[part]);
      }
      Floats sums[kGroup][kAtOnce] = {};
      for (int64_t step = 0; step < steps_; ++step) {
        ORCA_UNROLL for (int row = 0; row < kGroup; ++row) {
          ORCA_UNROLL for (int part = 0; part < kAtOnce; ++part) {
            sums[row][part] = Product<E>::add(sums[row][part], queries[row][step], keys[part] + step * kBlock);
          }
        }
      }
      for (int row = 0; row < count; ++row) {
        ORCA_UNROLL for (int part = 0; part < kAtOnce; ++part) {
          float *to = scores + row * kTile + place + part * kBlock;
          store(to, scaled(sums[row][part], kv_head(first_row), places[part]));
        }
      }
    }
    find_tops(first_row, count, tile, slots);
    for (int row = 0; row < count; ++row) weigh(first_row + row, tile, slots);
    add_values<kGroup>(first_row, count, tile, slots);
  }

  // Adds a tile's weighted values to `count` of at most `kCount` rows of one key/value head.
  template <int kCount>
  void add_values(int64_t first_row, int count, int64_t tile, int slots) {
    constexpr int kParts = kCount == 1 ? 4 : kAtOnce;  // independent sums, to hide latency
    const Stored *blocks[kTile / kBlock];
    const uint32_t *weights[kCount];
    for (int place = 0; place < slots; place += kBlock) {
      blocks[place / kBlock] = block(call_.value_pool, kv_head(first_row), tile + place);
    }
    ORCA_UNROLL for (int row = 0; row < kCount; ++row) {
      weights[row] = &scratch_.weights[(first_row + std::min(row, count - 1)) * kTile / kWidth];
    }
    float *to = &scratch_.accumulated[first_row * dim_];
    int64_t d = 0;
    for (; d + kParts * kLanes <= dim_; d += kParts * kLanes) {
      add_columns<kCount, kParts>(to + d, count, weights, blocks, d, slots);
    }
    for (; d < dim_; d += kLanes) add_columns<kCount, 1>(to + d, count, weights, blocks, d, slots);
  }

  template <int kCount, int kParts>
  void add_columns(float *to, int count, const uint32_t *const *weights, const Stored *const *blocks, int64_t column,
                   int slots) const {
    constexpr int kSteps = kBlock / kWidth;  // of a block
    Floats sums[kCount][kParts] = {};
    const int steps = slots / kWidth;
    for (int first = 0; first < steps; first += kSteps) {
      const Stored *values = blocks[first / kSteps] + column;
      for (int step = first; step < std::min(steps, first + kSteps); ++step, values += dim_) {
        ORCA_UNROLL for (int row = 0; row < kCount; ++row) {
          ORCA_UNROLL for (int part = 0; part < kParts; ++part) {
            sums[row][part] = Product<E>::add(sums[row][part], weights[row][step], values + part * kLanes);
          }
        }
      }
    }
    if constexpr (kWidth == 2) {
      if (slots % 2) {
        const uint32_t *values = blocks[steps / kSteps] + steps % kSteps * dim_ + column;
        ORCA_UNROLL for (int row = 0; row < kCount; ++row) {
          ORCA_UNROLL for (int part = 0; part < kParts; ++part) {
            sums[row][part] = Product<E>::add_first(sums[row][part], weights[row][steps], values + part * kLanes);
          }
        }
      }
    }
    for (int row = 0; row < count; ++row) {
      ORCA_UNROLL for (int part = 0; part < kParts; ++part) {
        float *place = to + row * dim_ + part * kLanes;
        store(place, load(place) + sums[row][part]);
      }
    }
  }

  const AttentionCall<T, E> &call_;
  const AttentionShape &shape_;
  const Item item_;
  Scratch &scratch_;
  const int64_t heads_, start_, context_;
  const int32_t *table_;
  const int64_t num_rows_, dim_, steps_;
};

// `Work` computes an item in its thread's `Memory`.
template <typename T, typename E, typename Work = AttentionItem<T, E>>
void attention(const AttentionCall<T, E> &call) {
  const AttentionShape &shape = call.shape;
  const int64_t heads = shape.num_heads / shape.num_kv_heads;
  // Increments: divide a request's heads into just enough items to keep all threads busy.
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
    typename Work::Memory memory(shape.head_dim);
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); ++index) {
      Work(call, items[index], memory).run();
    }
  }
}

}  // namespace orca
