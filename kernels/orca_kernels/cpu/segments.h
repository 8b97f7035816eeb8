// Products of rows with many inputs. Few of such rows fit into the L2 cache, where they share a panel of weights, so that
// memory would limit the products of a prompt. So inputs are divided into segments: more rows share the weights of a
// segment, and their sums are kept in memory from one segment to the next. An element of y is the same chain of sums.
#pragma once

#include "linear.h"

namespace orca {

// Packed words of the longest row that is not divided, and of the longest segment, unless a group with a common scale is
// longer (docs/benchmarks/kernels.md). With tiles memory limits the products sooner; other instructions lose a few percent
// by shorter segments.
#if defined(__AMX_BF16__)
constexpr int64_t kLongRow = 1280, kSegmentWords = 640;
#else
constexpr int64_t kLongRow = 2048, kSegmentWords = 2048;
#endif
constexpr int64_t kMostSums = 1 << 22;  // that are kept: the outputs of a vocabulary come in several passes

// Some of the inputs of a call of type `Base`; its rows are a chunk of that call's rows.
template <typename Base>
struct SegmentCall : Base {
  using Element = typename Base::Element;
  using Sums = typename Base::Sum (*)[kPanel];
  static constexpr bool kIsSegment = true;
  int64_t first, count;             // of the inputs
  int64_t first_row, num_rows;      // of the chunk
  int64_t first_panel;              // of the pass
  Sums kept;                        // [panels of the pass, num_rows]
  typename Base::Factors *factors;  // [num_rows]

  bool is_first() const { return first == 0; }
  bool is_last() const { return first + count == this->inputs; }
  int64_t num_inputs() const { return count; }
  const Element *row(int64_t place) const { return Base::row(place) + first; }
  const auto *weights(int64_t panel) const { return Base::weights(panel) + Base::panel_words(first); }
  int64_t first_scale(int64_t panel) const { return Base::first_scale(panel) + first / this->group * kPanel; }
  Sums sums(int64_t panel, int64_t row) const { return kept + (panel - first_panel) * num_rows + row - first_row; }

  // A row's scale, and the sum of its numbers before this segment. `keep` stores them for the next one.
  auto row_factors(int64_t row) const { return is_first() ? Base::row_factors(row) : factors[row - first_row]; }
  void keep(int64_t row, typename Base::Factors of_row) const { factors[row - first_row] = of_row; }

  template <int kRows>
  void multiply(const uint32_t *words, int64_t panel, Ahead ahead, Floats (&sums)[kRows][kVectors]) const {
    Base::template add<kRows>(words, weights(panel), count, ahead, sums);
  }
};

// As `linear_rows` with Blocks<Call>, in segments where rows are long and do not all fit into the cache. All segments but
// the last one have a multiple of `Blocks<Call>::segment_unit` inputs: whole words, tiles, or groups with a common scale.
template <typename Call, template <typename> class Blocks>
void rows_in_segments(const Call &call, int64_t first_of_all, int64_t num_rows, int threads) {
  using Segment = SegmentCall<Call>;
  constexpr int64_t kMostRows = Blocks<Segment>::kMostRows;
  const int64_t row_words = Blocks<Call>::row_words(call);
  const int64_t segments = (row_words + kSegmentWords - 1) / kSegmentWords, unit = Blocks<Call>::segment_unit(call);
  const int64_t most = (call.inputs + segments * unit - 1) / (segments * unit) * unit;
  const bool few = row_words <= kLongRow || num_rows * row_words <= kChunkWords;
  if (few || most >= call.inputs) return linear_rows<Call, Blocks<Call>>(call, first_of_all, num_rows, threads);
  const int64_t words_of_segment = Blocks<Segment>::row_words(Segment{call, 0, most, 0, 0, 0, nullptr, nullptr});
  const int64_t whole_blocks = std::max<int64_t>(1, kChunkWords / words_of_segment / kMostRows);
  const int64_t chunk = std::min(num_rows, whole_blocks * kMostRows);
  const int64_t panels = (call.outputs + kPanel - 1) / kPanel;
  const int64_t most_panels = std::min(panels, std::max<int64_t>(1, kMostSums * num_rows / call.rows / (chunk * kPanel)));
  static thread_local Lines<uint32_t> memory;  // reused by later calls
  static thread_local Lines<typename Call::Sum> sums;
  static thread_local Lines<typename Call::Factors> factors;
  memory.resize(std::max<size_t>(memory.size(), chunk * words_of_segment));
  sums.resize(std::max<size_t>(sums.size(), most_panels * chunk * kPanel));
  factors.resize(std::max<size_t>(factors.size(), chunk));
  uint32_t *words = memory.data();
  const auto kept = reinterpret_cast<typename Segment::Sums>(sums.data());
  typename Call::Factors *of_rows = factors.data();
#pragma omp parallel num_threads(threads)
  for (int64_t done = 0; done < num_rows; done += chunk) {
    const int64_t first_row = first_of_all + done, rows = std::min(chunk, num_rows - done);
    for (int64_t first_panel = 0; first_panel < panels; first_panel += most_panels) {
      const int64_t end = std::min(panels, first_panel + most_panels);
      for (int64_t first = 0; first < call.inputs; first += most) {
        const int64_t count = std::min(most, call.inputs - first);
        const Segment segment{call, first, count, first_row, rows, first_panel, kept, of_rows};
        Blocks<Segment> blocks{segment, first_row, rows};
#pragma omp for
        for (int64_t block = 0; block < blocks.count; ++block) blocks.pack(words, block);
#pragma omp for
        for (int64_t panel = first_panel; panel < end; ++panel) compute_panel(blocks, words, panel);
      }
    }
  }
}

template <typename Call, template <typename> class Blocks>
void linear_in_segments(const Call &call) {
  share_out(call, [&](int64_t first_row, int64_t rows, int threads) {
    rows_in_segments<Call, Blocks>(call, first_row, rows, threads);
  });
}

template <typename T>
void linear(const LinearCall<T> &call) {
  linear_in_segments<LinearCall<T>, RowBlocks>(call);
}

inline void linear(const WideCall &call) { linear_in_segments<WideCall, RowBlocks>(call); }

}  // namespace orca
