// Attention of bfloat16 over a cache of integers by products of sixteen bits (VPDPWSSD). The elements of a query, and
// the weights of a tile times the scales of its values, become whole numbers of sixteen bits with a common scale, which
// are more exact than bfloat16. Sums of products are exact: a token has the same result in a prompt and an increment.
#pragma once

#include "attention.h"
#include "integer_linear.h"

#if defined(__AVX512F__)

namespace orca {

constexpr float kLargestNumber = 32767;  // so sums over 512 elements of a head, or 64 slots, fit into 32 bits

// Two rows of sixteen bytes as sixteen words: the bytes of both at one place, widened.
inline Words paired(const int8_t *first, const int8_t *second) {
  const auto row = [](const int8_t *from) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from)); };
  const __m512i rows = _mm512_cvtepi8_epi16(_mm256_set_m128i(row(second), row(first)));
  const __m512i places =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                       18, 2, 17, 1, 16, 0);
  return (Words)_mm512_permutexvar_epi16(places, rows);
}

// The words of a head's keys and values in a tile: two elements of sixteen keys, or an element of two slots' values.
struct StoredTile {
  static constexpr int kBlocks = kTile / kBlock;
  const int8_t *keys[kBlocks], *values[kBlocks];  // of blocks in the pools
  int64_t dim;

  Words key(int block, int64_t word) const {
    const int8_t *from = keys[block] + word * 2 * kBlock;
    if (word % 2 == 0) __builtin_prefetch(values[block] + word * 2 * kBlock, 0, 2);
    return paired(from, from + kBlock);
  }

  Words value(int word, int64_t column) const {
    constexpr int kWords = kBlock / 2;
    const int8_t *from = values[word / kWords] + word % kWords * 2 * dim + column;
    return paired(from, from + dim);
  }
};

// The same words in memory that many rows read.
struct WordTile {
  const uint32_t *keys, *values;  // [blocks, D / 2, 16] and [slots / 2, D]
  int64_t dim;

  Words key(int block, int64_t word) const { return load_as<Words>(keys + (block * dim / 2 + word) * kBlock); }

  Words value(int word, int64_t column) const { return load_as<Words>(values + word * dim + column); }
};

struct IntegerScratch : Scratch {
  Lines<uint32_t> keys, values;                            // of a WordTile
  Lines<float> value_scales, query_scales, weight_scales;  // of a tile's slots; of a row's numbers

  explicit IntegerScratch(int64_t head_dim)
      : Scratch(head_dim), keys(kTile * head_dim / 2), values(kTile * head_dim / 2), value_scales(kTile),
        query_scales(kRows), weight_scales(kRows) {}
};

class IntegerAttentionItem : public AttentionItem<BFloat16, int8_t> {
 public:
  using Memory = IntegerScratch;

  IntegerAttentionItem(const AttentionCall<BFloat16, int8_t> &call, const Item &item, IntegerScratch &scratch)
      : AttentionItem(call, item, scratch), own_(scratch), words_(dim_ / 2) {}

 private:
  uint32_t *query(int64_t row) const { return &scratch_.queries[row * dim_]; }  // D / 2 words
  uint32_t *weights(int64_t row) const { return &scratch_.weights[row * kTile]; }  // kTile / 2 words

  // Writes the whole numbers next to values / scale; 0 for a scale that has no inverse.
  static void put_numbers(uint32_t *to, const Floats *values, int64_t count, float scale) {
    const float inverse = scale < 1e-37f ? 0 : 1 / scale;
    for (int64_t i = 0; i < count; ++i) {
      const __m256i numbers = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)(values[i] * inverse)));
      std::memcpy(to + i * kLanes / 2, &numbers, sizeof(numbers));
    }
  }

  void load_query(int64_t row, const BFloat16 *from) override {
    own_.query_scales[row] = row_scale(from, dim_) * (127 / kLargestNumber);
    for (int64_t d = 0; d < dim_; d += kLanes) {
      const Floats values = load(from + d);
      put_numbers(query(row) + d / 2, &values, 1, own_.query_scales[row]);
    }
  }

  void add_tile(int64_t tile, int slots) override {
    for (int64_t first = 0; first < num_rows_; first += item_.num_rows) {  // a key/value head at a time
      const StoredTile stored = load_tile(first, tile, slots);
      if (item_.num_rows <= kDirect) {
        for (int64_t row = first; row < first + item_.num_rows; ++row) add_rows<1>(stored, row, 1, tile, slots);
        continue;
      }
      const WordTile words = words_of(stored, slots);
      for (int64_t row = first; row < first + item_.num_rows; row += kGroup) {
        add_rows<kGroup>(words, row, std::min<int64_t>(kGroup, first + item_.num_rows - row), tile, slots);
      }
    }
  }

  StoredTile load_tile(int64_t row, int64_t tile, int slots) {
    StoredTile stored{{}, {}, dim_};
    for (int part = 0; part < StoredTile::kBlocks; ++part) {
      const int64_t place = tile + (part * kBlock < slots ? part * kBlock : 0);
      stored.keys[part] = block(call_.key_pool, kv_head(row), place);
      stored.values[part] = block(call_.value_pool, kv_head(row), place);
      const int written = std::clamp(slots - part * kBlock, 0, kBlock);
      const float *scales = call_.value_scales + index(kv_head(row), place) * kBlock;
      store(&own_.value_scales[part * kBlock], (Floats)_mm512_maskz_loadu_ps((1 << written) - 1, scales));
    }
    return stored;
  }

  WordTile words_of(const StoredTile &stored, int slots) {
    for (int block = 0; block * kBlock < slots; ++block) {
      for (int64_t word = 0; word < words_; ++word) {
        store_as(&own_.keys[(block * words_ + word) * kBlock], stored.key(block, word));
      }
    }
    for (int word = 0; word < (slots + 1) / 2; ++word) {
      for (int64_t d = 0; d < dim_; d += kLanes) store_as(&own_.values[word * dim_ + d], stored.value(word, d));
    }
    return {own_.keys.data(), own_.values.data(), dim_};
  }

  template <int kCount, typename Tile>
  ORCA_VNNI void add_rows(const Tile &words, int64_t first_row, int count, int64_t tile, int slots) {
    slots = static_cast<int>(std::min<int64_t>(slots, position(first_row + count - 1) + 1 - tile));
    if (slots <= 0) return;
    if (shape_.window && position(first_row) - shape_.window >= tile + slots - 1) return;
    constexpr int kBlocks = kCount == 1 ? StoredTile::kBlocks : kAtOnce, kParts = kCount == 1 ? 4 : kAtOnce;
    for (int place = 0; place < slots; place += kBlocks * kBlock) {
      score<kCount, kBlocks>(words, first_row, count, tile, place, slots);
    }
    find_tops(first_row, count, tile, slots);
    for (int row = 0; row < count; ++row) weigh_numbers(first_row + row, tile, slots);
    if constexpr (kCount == 1) prefetch_keys(first_row, tile + kTile);
    int64_t d = 0;
    for (; d + kParts * kLanes <= dim_; d += kParts * kLanes) {
      add_columns<kCount, kParts>(words, first_row, count, d, slots);
    }
    for (; d < dim_; d += kLanes) add_columns<kCount, 1>(words, first_row, count, d, slots);
  }

  // Prefetches the keys of a tile for a row of an increment.
  void prefetch_keys(int64_t row, int64_t tile) const {
    for (int64_t place = tile; place < std::min<int64_t>(position(row) + 1, tile + kTile); place += kBlock) {
      const int8_t *keys = block(call_.key_pool, kv_head(row), place);
      for (int64_t byte = 0; byte < kBlock * dim_; byte += 64) __builtin_prefetch(keys + byte, 0, 2);
    }
  }

  // Computes the scores of kBlocks blocks from slot `place` of the tile on.
  template <int kCount, int kBlocks, typename Tile>
  ORCA_VNNI void score(const Tile &words, int64_t first_row, int count, int64_t tile, int place, int slots) {
    const uint32_t *queries[kCount];
    for (int row = 0; row < kCount; ++row) queries[row] = query(first_row + std::min(row, count - 1));
    Ints sums[kCount][kBlocks] = {};
    for (int64_t word = 0; word < words_; ++word) {
      Words keys[kBlocks];
      for (int part = 0; part < kBlocks; ++part) keys[part] = words.key(place / kBlock + part, word);
      add_products<kCount, kBlocks>(sums, queries, word, keys);
    }
    for (int row = 0; row < count; ++row) {
      for (int part = 0; part < kBlocks && place + part * kBlock < slots; ++part) {
        const int64_t at = place + part * kBlock;
        const Floats products = floats(sums[row][part]) * own_.query_scales[first_row + row];
        store(&scratch_.scores[(first_row + row) * kTile + at], scaled(products, kv_head(first_row), tile + at));
      }
    }
  }

  // Turns a row's scores into its weights as numbers.
  void weigh_numbers(int64_t row, int64_t tile, int slots) {
    Floats values[kTile / kLanes], most{}, invalid{};
    const int weighed = weigh(row, tile, slots, [&](int place, Floats weight) {
      const Floats value = weight * load(&own_.value_scales[place]);
      values[place / kLanes] = value;
      most = larger(most, value);
      invalid += value - value;  // 0, or NaN
    });
    const float scale = largest(most) / kLargestNumber + sum(invalid);
    put_numbers(weights(row), values, weighed / kLanes, scale);
    own_.weight_scales[row] = scale;
  }

  // Adds a tile's weighted values to kParts vectors of each row's output.
  template <int kCount, int kParts, typename Tile>
  ORCA_VNNI void add_columns(const Tile &words, int64_t first_row, int count, int64_t column, int slots) {
    const uint32_t *factors[kCount];
    for (int row = 0; row < kCount; ++row) factors[row] = weights(first_row + std::min(row, count - 1));
    Ints sums[kCount][kParts] = {};
    for (int word = 0; word < (slots + 1) / 2; ++word) {
      Words values[kParts];
      for (int part = 0; part < kParts; ++part) values[part] = words.value(word, column + part * kLanes);
      add_products<kCount, kParts>(sums, factors, word, values);
    }
    for (int row = 0; row < count; ++row) {
      const Floats scale = splat(own_.weight_scales[first_row + row]);
      for (int part = 0; part < kParts; ++part) {
        float *place = &scratch_.accumulated[(first_row + row) * dim_ + column + part * kLanes];
        store(place, multiply_add(floats(sums[row][part]), scale, load(place)));
      }
    }
  }

  template <int kCount, int kParts>
  ORCA_VNNI static inline void add_products(Ints (&sums)[kCount][kParts], const uint32_t *const (&rows)[kCount],
                                            int64_t word, const Words (&numbers)[kParts]) {
    for (int row = 0; row < kCount; ++row) {
      const __m512i factor = _mm512_set1_epi32(static_cast<int>(rows[row][word]));
      for (int part = 0; part < kParts; ++part) {
        sums[row][part] = (Ints)_mm512_dpwssd_epi32((__m512i)sums[row][part], factor, (__m512i)numbers[part]);
      }
    }
  }

  IntegerScratch &own_;
  const int64_t words_;  // of a row of a query or key
};

}  // namespace orca
#endif
