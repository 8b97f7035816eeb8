// y = x W^T + b, reading the weights once and sequentially. Weights are stored in panels of kPanel outputs: a step of a
// panel is a word of four bytes for each output, one float or two bfloat16. Several rows of x are computed at a time, so
// that their sums fill the registers; few rows are memory-bound, many are compute-bound. An element of y is one chain of
// sums over the inputs in order, independent of the other rows.
#pragma once

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "vector.h"

namespace orca {

// The sums of kRowsAtOnce rows and a step of the weights fill the 32 registers of AVX-512 or NEON, or the 16 of AVX2.
#if defined(__AVX512F__)
constexpr int kVectors = 2, kRowsAtOnce = 12;
#else
constexpr int kVectors = 1, kRowsAtOnce = 6;
#endif
constexpr int kPanel = kVectors * kLanes;  // outputs; panel_linear.py rounds up to 32
constexpr int kAhead = 32 / kVectors;      // steps to prefetch into the L1 cache: 2 KB
constexpr int kFarAhead = 128 / kVectors;  // steps to prefetch into the L2 cache: memory latency exceeds kAhead steps
// Words of rows that stay in the L2 cache, beside the weights: 512 KB, and 768 KB of the 2 MB of processors with AMX, whose
// tiles multiply a panel of weights in less time than memory takes to deliver it for few rows.
#if defined(__AMX_BF16__)
constexpr int64_t kChunkWords = 3 << 16;
#else
constexpr int64_t kChunkWords = 1 << 17;
#endif

// A thread multiplies rows of its own if it has so many, and if the map has at most so many outputs for each of all rows:
// every thread reads all weights then.
constexpr int64_t kOwnRows = 128, kOutputsOfRow = 6;

// The lines of weights that a block of rows fetches into the L2 cache while it multiplies a panel: one for each line that
// is read. A lone block fetches what it will read soon; of several, each fetches its part of the next panel, so that
// memory is read during the products of all blocks.
struct Ahead {
  static constexpr int64_t kLineBytes = 64;
  const char *line;
  int64_t stride;  // bytes

  // `panel`: of `bytes` bytes, which `blocks` blocks of rows read in turn, this one as number `block`. The next panel
  // follows, or begins `distance` bytes after this one.
  Ahead(const void *panel, int64_t bytes, int64_t block, int64_t blocks) : Ahead(panel, bytes, block, blocks, bytes) {}

  Ahead(const void *panel, int64_t bytes, int64_t block, int64_t blocks, int64_t distance)
      : line(static_cast<const char *>(panel) +
             (blocks > 1 ? distance + bytes * block / blocks : kFarAhead * kPanel * 4)),
        stride(kLineBytes / blocks) {}

  // For a line that is read at `weights`, of which the L1 cache gets those of some steps later.
  ORCA_INLINE void fetch(const void *weights) {
    __builtin_prefetch(static_cast<const char *>(weights) + kAhead * kPanel * 4);
    __builtin_prefetch(line, 0, 2);
    line += stride;
  }
};

template <typename T>
struct MapCall {
  using Element = T;
  using Sum = float;
  struct Factors {};  // what a packed row has beside its words
  static constexpr int64_t kFactorWords = 0;
  const T *x;         // [rows, inputs]
  const T *bias;      // [outputs], or null
  const T *residual;  // [rows, outputs], or null
  T *y;               // [rows, outputs], or null
  T *activated;       // [rows, outputs], becomes GeLU of the product and its bias, before rounding; or null
  int64_t rows, inputs, outputs;

  // A SegmentCall (segments.h) replaces these: it has some of the inputs, and adds their products to the sums before.
  static constexpr bool kIsSegment = false;
  int64_t num_inputs() const { return inputs; }
  const T *row(int64_t place) const { return x + place * inputs; }
};

// Adds the products of one input and kPanel outputs to the sums of `kRows` rows; `words` has the input of each row,
// which is loaded once for all vectors of outputs.
template <int kRows>
ORCA_INLINE void add_input(Floats (&sums)[kRows][kVectors], const uint32_t *words, const Floats (&weights)[kVectors]) {
  ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
    float value;
    std::memcpy(&value, words + row, sizeof(value));
    const Floats values = splat(value);
    ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
      sums[row][part] = multiply_add(values, weights[part], sums[row][part]);
    }
  }
}

template <typename T>
struct LinearCall : MapCall<T> {
  using Row = T;           // element type of the packed rows
  const uint32_t *panels;  // [outputs / kPanel, inputs / Product<T>::kWidth, kPanel]

  static int64_t panel_words(int64_t inputs) { return inputs / Product<T>::kWidth * kPanel; }
  const uint32_t *weights(int64_t panel) const { return panels + panel * panel_words(this->inputs); }

  template <int kRows>
  void multiply(const uint32_t *words, int64_t panel, Ahead ahead, Floats (&sums)[kRows][kVectors]) const {
    add<kRows>(words, weights(panel), this->inputs, ahead, sums);
  }

  // Adds the products of `kRows` rows and a panel of `count` inputs; `words` has the rows' words interleaved, [steps, kRows].
  template <int kRows>
  static void add(const uint32_t *words, const uint32_t *weights, int64_t count, Ahead ahead,
                  Floats (&sums)[kRows][kVectors]) {
    const int64_t steps = count / Product<T>::kWidth;
    Floats own[kRows][kVectors];  // the caller's array would be written in every step
    std::memcpy(&own, &sums, sizeof(sums));
    for (int64_t step = 0; step < steps; ++step, weights += kPanel, words += kRows) {
      for (int part = 0; part < kVectors; ++part) ahead.fetch(weights + part * kLanes);
      ORCA_UNROLL for (int row = 0; row < kRows; ++row) {
        ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
          own[row][part] = Product<T>::add(own[row][part], words[row], weights + part * kLanes);
        }
      }
    }
    std::memcpy(&sums, &own, sizeof(sums));
  }
};

// The same panels of bfloat16, whose words are widened to two vectors of floats in registers. Packed rows are floats, so
// that a row costs two instructions per word. Faster than dot products where those take longer (dot_products.h).
struct WideCall : MapCall<BFloat16> {
  using Row = float;
  const uint32_t *panels;  // [outputs / kPanel, inputs / 2, kPanel]

  static int64_t panel_words(int64_t inputs) { return inputs / 2 * kPanel; }
  const uint32_t *weights(int64_t panel) const { return panels + panel * panel_words(inputs); }

  template <int kRows>
  void multiply(const uint32_t *words, int64_t panel, Ahead ahead, Floats (&sums)[kRows][kVectors]) const {
    add<kRows>(words, weights(panel), inputs, ahead, sums);
  }

  // See LinearCall::add; `words` has an input of each row.
  template <int kRows>
  static void add(const uint32_t *words, const uint32_t *weights, int64_t count, Ahead ahead,
                  Floats (&sums)[kRows][kVectors]) {
    const int64_t steps = count / 2;
    Floats own[kRows][kVectors];
    std::memcpy(&own, &sums, sizeof(sums));
    for (int64_t step = 0; step < steps; ++step, weights += kPanel, words += 2 * kRows) {
      Words pairs[kVectors];
      Floats wide[kVectors];
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        ahead.fetch(weights + part * kLanes);
        pairs[part] = load_as<Words>(weights + part * kLanes);
        wide[part] = reinterpreted<Floats>(pairs[part] << 16);
      }
      add_input<kRows>(own, words, wide);
      ORCA_UNROLL for (int part = 0; part < kVectors; ++part) {
        wide[part] = reinterpreted<Floats>(pairs[part] & 0xffff0000);
      }
      add_input<kRows>(own, words + kRows, wide);
    }
    std::memcpy(&sums, &own, sizeof(sums));
  }
};

// Packs W [outputs, inputs] into panels; outputs are padded with zeros. Inputs must fill whole words.
template <typename T>
void pack(const T *weight, uint32_t *panels, int64_t inputs, int64_t outputs) {
  constexpr int kWidth = Product<T>::kWidth;
  const int64_t steps = inputs / kWidth, count = (outputs + kPanel - 1) / kPanel;
#pragma omp parallel for
  for (int64_t panel = 0; panel < count; ++panel) {
    uint32_t *to = panels + panel * steps * kPanel;
    for (int64_t column = 0; column < kPanel; ++column) {
      const int64_t output = panel * kPanel + column;
      for (int64_t step = 0; step < steps; ++step) {
        uint32_t word = 0;
        if (output < outputs) std::memcpy(&word, weight + output * inputs + step * kWidth, sizeof(word));
        to[step * kPanel + column] = word;
      }
    }
  }
}

// Packs scales or zero points [outputs, groups] as [outputs / kPanel, groups, kPanel]; outputs are padded with zeros.
inline void pack_groups(const float *from, float *to, int64_t outputs, int64_t groups) {
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t output = panel * kPanel; output < (panel + 1) * kPanel; ++output) {
        *to++ = output < outputs ? from[output * groups + group] : 0;
      }
    }
  }
}

inline Floats gelu_tanh(Floats x) {
  const Floats inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exponential(-2.0f * inner));
}

// Writes the outputs of one panel, row by row, from their sums.
template <typename T>
struct OutputPanel {
  const MapCall<T> &call;
  int64_t column, width;
  T bias[kPanel] = {}, residual[kPanel] = {}, output[kPanel], activated[kPanel];

  OutputPanel(const MapCall<T> &call, int64_t panel)
      : call(call), column(panel * kPanel), width(std::min<int64_t>(kPanel, call.outputs - column)) {
    if (call.bias) std::copy_n(call.bias + column, width, bias);
  }

  void put(int64_t row, const Floats (&sums)[kVectors]) {
    put_values(row, [&](int part, Floats bias) { return sums[part] + bias; });
  }

  // `values(part, bias)`: the outputs of a vector, with their bias.
  template <typename Values>
  void put_values(int64_t row, Values values) {
    const int64_t place = row * call.outputs + column;
    const bool whole = width == kPanel;  // then nothing is copied
    if (call.residual && !whole) std::copy_n(call.residual + place, width, residual);
    const T *added = call.residual && whole ? call.residual + place : residual;
    T *to = whole ? call.y + place : output, *activated_to = whole ? call.activated + place : activated;
    for (int part = 0; part < kVectors; ++part) {
      const int lane = part * kLanes;
      const Floats value = values(part, load(bias + lane));
      if (call.y) store(to + lane, value + load(added + lane));
      if (call.activated) store(activated_to + lane, gelu_tanh(value));
    }
    if (whole) return;
    if (call.y) std::copy_n(output, width, call.y + place);
    if (call.activated) std::copy_n(activated, width, call.activated + place);
  }
};

// Computes `kRows` rows of one panel's outputs.
template <typename Call, int kRows>
void panel_rows(const Call &call, const uint32_t *words, int64_t first_row, int64_t panel, Ahead ahead) {
  Floats sums[kRows][kVectors] = {};
  if constexpr (Call::kIsSegment) {
    if (!call.is_first()) std::memcpy(&sums, call.sums(panel, first_row), sizeof(sums));
  }
  call.template multiply<kRows>(words, panel, ahead, sums);
  if constexpr (Call::kIsSegment) {
    if (!call.is_last()) {
      std::memcpy(call.sums(panel, first_row), &sums, sizeof(sums));
      return;
    }
  }
  OutputPanel<typename Call::Element> outputs(call, panel);
  for (int row = 0; row < kRows; ++row) outputs.put(first_row + row, sums[row]);
}

template <typename Call, int kRows = kRowsAtOnce>
void panel_block(const Call &call, const uint32_t *words, int64_t first_row, int64_t rows, int64_t panel, Ahead ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return panel_block<Call, kRows - 1>(call, words, first_row, rows, panel, ahead);
  }
  panel_rows<Call, kRows>(call, words, first_row, panel, ahead);
}

// The blocks of rows that vector registers compute, of nearly equal size, so that no block has only a few rows.
template <typename Call>
struct RowBlocks {
  using Row = typename Call::Row;
  static constexpr int64_t kMostRows = kRowsAtOnce;
  const Call &call;
  int64_t first_row, rows;
  int64_t steps = row_words(call), count = (rows + kMostRows - 1) / kMostRows;

  static int64_t row_words(const Call &call) { return call.num_inputs() / Product<Row>::kWidth; }  // of a packed row

  static int64_t segment_unit(const Call &) { return 32; }  // a multiple of a word's inputs

  int64_t begin(int64_t block) const { return rows * block / count; }

  // Packs a block's rows for panel_rows.
  void pack(uint32_t *words, int64_t block) const {
    using T = typename Call::Element;
    const int64_t width = begin(block + 1) - begin(block);
    for (int64_t row = 0; row < width; ++row) {
      const T *from = call.row(first_row + begin(block) + row);
      uint32_t *to = words + begin(block) * steps + row;
      for (int64_t step = 0; step < steps; ++step) {
        if constexpr (std::is_same_v<T, Row>) {
          std::memcpy(to + step * width, from + step * Product<Row>::kWidth, 4);
        } else {
          const float value = scalar(from[step]);
          std::memcpy(to + step * width, &value, 4);
        }
      }
    }
  }

  void compute(const uint32_t *words, int64_t block, int64_t panel) const {
    const int64_t first = begin(block);
    const int64_t width = begin(block + 1) - first, word = sizeof(*call.panels);
    const auto *weights = call.weights(panel);
    const Ahead ahead(weights, Call::panel_words(call.num_inputs()) * word, block, count,
                      (call.weights(panel + 1) - weights) * word);
    panel_block<Call>(call, words + first * steps, first_row + first, width, panel, ahead);
  }
};

// Computes the outputs of a panel for all rows.
template <typename Blocks>
void compute_panel(Blocks &blocks, const uint32_t *words, int64_t panel) {
  for (int64_t block = 0; block < blocks.count; ++block) blocks.compute(words, block, panel);
}

// Calls `multiply(first_row, rows, threads)`: for all rows with all threads, which share out the panels; or, where there are
// enough rows, on each thread for rows of its own. A thread then reads what it has packed itself, waits for no other, and
// its cache holds only its own rows.
template <typename Call, typename Multiply>
void share_out(const Call &call, const Multiply &multiply) {
  const int64_t rows = call.rows;
  const int threads = omp_get_max_threads();
  const bool has_own = rows >= threads * kOwnRows && call.outputs <= rows * kOutputsOfRow;
  if (threads == 1 || !has_own) return multiply(int64_t{0}, rows, threads);
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t first = rows * thread / count;
    multiply(first, rows * (thread + 1) / count - first, 1);
  }
}

// `Blocks` divides rows into blocks, packs the rows of a block, and computes its outputs of one panel.
template <typename Call, typename Blocks>
void linear_rows(const Call &call, int64_t first_row, int64_t rows, int threads) {
  constexpr int64_t kMostRows = Blocks::kMostRows;
  const int64_t row_words = Blocks::row_words(call), panels = (call.outputs + kPanel - 1) / kPanel;
  const int64_t chunk = std::max<int64_t>(kMostRows, kChunkWords / row_words / kMostRows * kMostRows);
  static thread_local Lines<uint32_t> memory;  // reused by later calls
  memory.resize(std::max<size_t>(memory.size(), std::min(chunk, rows) * row_words));
  uint32_t *words = memory.data();
#pragma omp parallel num_threads(threads)
  for (int64_t first = 0; first < rows; first += chunk) {
    Blocks blocks{call, first_row + first, std::min(chunk, rows - first)};
#pragma omp for
    for (int64_t block = 0; block < blocks.count; ++block) blocks.pack(words, block);
#pragma omp for
    for (int64_t panel = 0; panel < panels; ++panel) {
      compute_panel(blocks, words, panel);
    }
  }
}

template <typename Call, typename Blocks = RowBlocks<Call>>
void linear(const Call &call) {
  share_out(call, [&](int64_t first_row, int64_t rows, int threads) {
    linear_rows<Call, Blocks>(call, first_row, rows, threads);
  });
}

}  // namespace orca
