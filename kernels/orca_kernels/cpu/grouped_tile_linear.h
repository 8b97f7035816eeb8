// y = x W^T + b on AMX tiles, for weights whose groups of inputs have scales: w4a8 here, weights alone in
// quantized_tile_linear.h. The first block of rows unpacks the numbers of a panel, less their zero points, into words
// that tiles multiply; the other blocks read these. A group begins with a tile, and zeros fill its last one. An element
// of y is the chain of the groups' sums times their scales, in the order of the groups, independent of the other rows.
#pragma once

#include "grouped_integer_linear.h"
#include "tile_linear.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)

namespace orca {

constexpr int64_t kPieceSteps = 2;                              // tiles of a row that are unpacked for at a time
constexpr int64_t kUnpackedWords = 2 * kTileRows * kTileWords;  // two tiles of weights: both halves of a panel

// Where the word number `row` of the outputs of `part` is unpacked to: each tile is contiguous.
inline uint32_t *unpacked_word(uint32_t *to, int64_t row, int part) {
  return to + row / kTileRows * kUnpackedWords + (part * kTileRows + row % kTileRows) * kTileWords;
}

// w4a8. Numbers less their zero points are signed bytes. The sums of a group are exact, so that they are those of other
// instructions.
template <typename T>
struct GroupedIntegerTiles : GroupedIntegerCall<T> {
  using GroupSum = int32_t;
  using Number = uint32_t;
  static constexpr int64_t kFactorWords = 1;                        // of a row and group: the scale
  static constexpr int64_t kStepInputs = kTileWords * kWordInputs;  // of a tile
  static constexpr int64_t kFewRows = 4;                            // take longer than by VPDPBUSD

  explicit GroupedIntegerTiles(const GroupedIntegerCall<T> &call) : GroupedIntegerCall<T>(call) {}

  static void multiply_0() { _tile_dpbssd(0, 4, 6); }
  static void multiply_1() { _tile_dpbssd(1, 4, 7); }
  static void multiply_2() { _tile_dpbssd(2, 5, 6); }
  static void multiply_3() { _tile_dpbssd(3, 5, 7); }

  // Quantises a group of a row and writes its words, kTileWords at a time, `stride` words apart: of each eight inputs
  // the even ones, then the odd ones.
  static void pack(const T *from, int64_t inputs, uint32_t *to, int64_t stride, uint32_t *factor) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const float scale = row_scale(from, inputs);
    for (int64_t input = 0; input < inputs; input += kStepInputs, to += stride) {
      if (input + kStepInputs > inputs) std::fill_n(to, kTileWords, 0);
      for (int64_t first = input; first < std::min(inputs, input + kStepInputs); first += kLanes) {
        const Ints numbers = scale > 0 ? row_numbers(from + first, inputs - first, scale) : Ints{};
        const __m128i bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8((__m512i)numbers), order);
        std::memcpy(to + (first - input) / kWordInputs, &bytes, sizeof(bytes));
      }
    }
    std::memcpy(factor, &scale, sizeof(scale));
  }

  // What is after the inputs in their last tile may be any numbers: a row has zeros there. `shared` is copied, so that
  // it need not be in memory in the loop.
  static void unpack(const uint32_t *numbers, int64_t inputs, const float *zeros, uint32_t *to, Ahead &shared) {
    Ahead ahead = shared;
    __m512i less[kVectors];
    for (int part = 0; part < kVectors; ++part) {
      const Ints zero = zeros ? whole_numbers(load(zeros + part * kLanes)) : Ints{};
      less[part] = (__m512i)((reinterpreted<Words>(zero + kNibbleExcess) & 0xff) * 0x01010101u);
    }
    for (int64_t row = 0; row < nibble_steps(inputs) * kNibbleWords; row += kNibbleWords, numbers += kPanel) {
      for (int part = 0; part < kVectors; ++part) {
        ahead.fetch(numbers + part * kLanes);
        const Words both = load_as<Words>(numbers + part * kLanes);
        store_as(unpacked_word(to, row, part), _mm512_sub_epi8((__m512i)(both & 0x0f0f0f0f), less[part]));
        store_as(unpacked_word(to, row + 1, part), _mm512_sub_epi8((__m512i)(both >> 4 & 0x0f0f0f0f), less[part]));
      }
    }
    shared = ahead;
  }

  static ORCA_INLINE Floats scaled(const int32_t *sums, const uint32_t *factor) {
    float scale;
    std::memcpy(&scale, factor, sizeof(scale));
    return floats(load_as<Ints>(sums)) * splat(scale);
  }
};

// The groups' sums of a block, and the sums of these times their scales. Vectors are computed beside the products of
// tiles: a tile of sums is stored when the next group needs it, and its rows are added in parts between that group's
// products.
template <typename Call>
struct GroupedResults {
  using Sum = typename Call::GroupSum;
  static constexpr int64_t kMostRows = 2 * kTileRows;
  alignas(64) Sum sums[kMostRows][kPanel];
  float spacing[512];  // at a distance of 4 KB loads of one array would wait for stores to the other
  float values[kMostRows][kPanel];
  const float *scales;      // of the group whose sums are being added
  const uint32_t *factors;  // of the block's rows
  int64_t rows, next_row;
  bool first;  // group

  // `before`: the values of the groups of earlier segments, or null.
  GroupedResults(const float *scales, const uint32_t *factors, int64_t rows, const float (*before)[kPanel])
      : scales(scales), factors(factors), rows(rows), next_row(rows), first(!before) {
    if (before) std::memcpy(values, before, rows * sizeof(*values));
  }

  // Adds the next `count` rows, or those that are left.
  void add(int64_t count) { first ? add_rows<true>(count) : add_rows<false>(count); }

  void finish_group() {
    add(rows);
    first = false;
    scales += kPanel;
    factors += rows * Call::kFactorWords;
  }

 private:
  template <bool kFirst>
  void add_rows(int64_t count) {
    const int64_t end = std::min(rows, next_row + count);
    const uint32_t *of_rows = factors;
    Floats of_weights[kVectors];
    for (int part = 0; part < kVectors; ++part) of_weights[part] = load(scales + part * kLanes);
    for (int64_t row = next_row; row < end; ++row) {
      for (int part = 0; part < kVectors; ++part) {
        float *to = values[row] + part * kLanes;
        const Floats value = Call::scaled(sums[row] + part * kLanes, of_rows + row * Call::kFactorWords);
        store(to, multiply_add(value, of_weights[part], kFirst ? Floats{} : load(to)));
      }
    }
    next_row = end;
  }
};

// The blocks of rows that tiles compute; only the last one may have less than kMostRows rows. A packed block is
// [tiles of all groups, its rows, kTileWords], and then [groups, rows, kFactorWords].
template <typename Call>
struct GroupedTileBlocks {
  using Results = GroupedResults<Call>;
  static constexpr int64_t kMostRows = Results::kMostRows, kPieceInputs = kPieceSteps * Call::kStepInputs;
  const Call &call;
  int64_t first_row, rows;
  int64_t groups = scale_groups(call.num_inputs(), call.group);
  int64_t tiles_of_row = row_tiles(call), words_of_row = row_words(call);
  int64_t count = (rows + kMostRows - 1) / kMostRows;
  uint32_t *unpacked = memory((count > 1 ? tiles_of_row : 2 * kPieceSteps) * kUnpackedWords);
  Tiles tiles = {};

  static int64_t tiles_of(int64_t inputs) { return (inputs + Call::kStepInputs - 1) / Call::kStepInputs; }

  static int64_t row_tiles(const Call &call) {
    return call.num_inputs() / call.group * tiles_of(call.group) + tiles_of(call.num_inputs() % call.group);
  }

  static int64_t row_words(const Call &call) {
    return row_tiles(call) * kTileWords + scale_groups(call.num_inputs(), call.group) * Call::kFactorWords;
  }

  static int64_t segment_unit(const Call &call) { return call.group; }

  int64_t begin(int64_t block) const { return std::min(rows, block * kMostRows); }

  int64_t height(int64_t block) const { return begin(block + 1) - begin(block); }

  void pack(uint32_t *words, int64_t block) const {
    const int64_t width = height(block), first = begin(block);
    words += first * words_of_row;
    for (int64_t row = 0; row < width; ++row) {
      const auto *from = call.row(first_row + first + row);
      uint32_t *to = words + row * kTileWords;
      uint32_t *factors = words + tiles_of_row * width * kTileWords + row * Call::kFactorWords;
      for (int64_t input = 0; input < call.num_inputs(); input += call.group) {
        const int64_t inputs = std::min(call.group, call.num_inputs() - input);
        Call::pack(from + input, inputs, to, width * kTileWords, factors);
        to += tiles_of(inputs) * width * kTileWords;
        factors += width * Call::kFactorWords;
      }
    }
  }

  void compute(const uint32_t *words, int64_t block, int64_t panel) {
    tiles.configure(&kLinearShapes.of[height(block)]);
    words += begin(block) * words_of_row;
    height(block) > kTileRows ? compute_block<true>(words, block, panel) : compute_block<false>(words, block, panel);
  }

 private:
  static uint32_t *memory(int64_t words) {
    static thread_local Lines<uint32_t> unpacked;  // reused by later calls
    unpacked.resize(std::max<size_t>(unpacked.size(), words));
    return unpacked.data();
  }

  // kBoth: the block has more than 16 rows.
  template <bool kBoth>
  void compute_block(const uint32_t *words, int64_t block, int64_t panel) const {
    const int64_t width = height(block), first = first_row + begin(block), place = call.first_scale(panel);
    const int64_t panel_words = Call::panel_words(call.num_inputs());
    const typename Call::Number *numbers = call.weights(panel);
    Ahead ahead(numbers, panel_words * sizeof(*numbers), block, count,
                (call.weights(panel + 1) - numbers) * sizeof(*numbers));
    const float(*before)[kPanel] = nullptr;
    if constexpr (Call::kIsSegment) {
      if (!call.is_first()) before = call.sums(panel, first);
    }
    Results results(call.scales + place, words + tiles_of_row * width * kTileWords, width, before);
    uint32_t *weights = unpacked;
    for (int64_t group = 0, pieces = 1; group < groups; ++group) {
      const int64_t inputs = std::min(call.group, call.num_inputs() - group * call.group);
      const int64_t part = (width - 1) / (4 * tiles_of(inputs) - 3) + 1;  // of the rows: see multiply
      for (int64_t input = 0; input < inputs; input += kPieceInputs, ++pieces) {
        const int64_t piece = std::min(kPieceInputs, inputs - input), steps = tiles_of(piece);
        if (block == 0) {
          Call::unpack(numbers, piece, call.zeros ? call.zeros + place + group * kPanel : nullptr, weights, ahead);
          numbers += Call::panel_words(piece);
          finish_writes(weights);
        }
        for (int64_t step = 0; step < steps; ++step, words += width * kTileWords) {
          const uint32_t *of_step = weights + step * kUnpackedWords;
          if (input || step) {
            multiply<kBoth, Begin::kNone>(words, of_step, results, part);
          } else if (group) {
            multiply<kBoth, Begin::kNext>(words, of_step, results, part);
          } else {
            multiply<kBoth, Begin::kFirst>(words, of_step, results, part);
          }
        }
        // A lone block needs no piece that it has multiplied. Two take turns: a load soon after a store waits.
        weights = count > 1 ? weights + steps * kUnpackedWords : unpacked + pieces % 2 * kPieceSteps * kUnpackedWords;
      }
      if (group) results.finish_group();
    }
    _tile_stored(0, results.sums[0], kStepBytes);
    _tile_stored(1, results.sums[0] + kTileWords, kStepBytes);
    if constexpr (kBoth) {
      _tile_stored(2, results.sums[kTileRows], kStepBytes);
      _tile_stored(3, results.sums[kTileRows] + kTileWords, kStepBytes);
    }
    results.next_row = 0;
    results.finish_group();
    if constexpr (Call::kIsSegment) {
      if (!call.is_last()) {
        std::memcpy(call.sums(panel, first), results.values, width * sizeof(*results.values));
        return;
      }
    }
    OutputPanel<typename Call::Element> outputs(call, panel);
    for (int64_t row = 0; row < width; ++row) {
      outputs.put_values(first + row,
                         [&](int part, Floats bias) { return load(results.values[row] + part * kLanes) + bias; });
    }
  }

  // The group that a step begins: none, the first one, or one whose tiles have the sums of the group before it.
  enum class Begin { kNone, kFirst, kNext };

  // The products of a step, and `part` of the block's rows in `results` once or after each product.
  template <bool kBoth, Begin kBegin>
  static void multiply(const uint32_t *words, const uint32_t *weights, Results &results, int64_t part) {
    _tile_loadd(6, weights, kTileBytes);
    _tile_loadd(7, weights + kTileRows * kTileWords, kTileBytes);
    _tile_loadd(4, words, kTileBytes);
    if constexpr (kBegin == Begin::kNext) _tile_stored(0, results.sums[0], kStepBytes);
    if constexpr (kBegin != Begin::kNone) _tile_zero(0);
    Call::multiply_0();
    if constexpr (kBegin == Begin::kNone) results.add(part);
    if constexpr (kBegin == Begin::kNext) _tile_stored(1, results.sums[0] + kTileWords, kStepBytes);
    if constexpr (kBegin != Begin::kNone) _tile_zero(1);
    Call::multiply_1();
    if constexpr (kBegin == Begin::kNone) results.add(part);
    if constexpr (kBoth) {
      _tile_loadd(5, words + kTileRows * kTileWords, kTileBytes);
      if constexpr (kBegin == Begin::kNext) _tile_stored(2, results.sums[kTileRows], kStepBytes);
      if constexpr (kBegin != Begin::kNone) _tile_zero(2);
      Call::multiply_2();
      if constexpr (kBegin == Begin::kNone) results.add(part);
      if constexpr (kBegin == Begin::kNext) _tile_stored(3, results.sums[kTileRows] + kTileWords, kStepBytes);
      if constexpr (kBegin != Begin::kNone) _tile_zero(3);
      Call::multiply_3();
      if constexpr (kBegin == Begin::kNone) results.add(part);
    }
    if constexpr (kBegin == Begin::kNext) {
      results.next_row = 0;
      results.add(part);
    }
  }
};

// Few rows are multiplied by VPDPBUSD, with the same results.
template <typename T>
void tile_linear(const GroupedIntegerCall<T> &call) {
  using OnTiles = GroupedIntegerTiles<T>;
  if (call.rows * std::min(call.group, OnTiles::kStepInputs) > OnTiles::kFewRows * OnTiles::kStepInputs) {
    linear<OnTiles, GroupedTileBlocks<OnTiles>>(OnTiles(call));
  } else {
    linear<GroupedIntegerCall<T>, GroupedIntegerBlocks<T, NibbleByteProducts>>(call);
  }
}

}  // namespace orca
#endif
