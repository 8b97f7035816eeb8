// The largest output of each row of y = x W^T, of equal ones the first, from fewer bytes than W has: products of a copy of
// W in eight bits tell which panels of outputs cannot have it, and only the others are computed. The output is that of all
// outputs, however bad the copy is: for a row x, output v and the copy C, |x.W_v - x.C_v| <= |x| |W_v - C_v| (inequality of
// Cauchy and Schwarz). A row of x is the sum of two rows of eight bits (integer_linear.h) and of a rest, which adds
// |rest| |C_v| to the bound.
#pragma once

#include <utility>
#include <vector>

#include "integer_linear.h"
#include "linear.h"

#if defined(ORCA_MULTIPLY_ADD)

namespace orca {

// A copy of W in eight bits: W[output] is nearly numbers[output] x scale[output]. Outputs are padded with zeros.
struct Copy {
  const uint32_t *panels;  // of pack_integers
  const float *scales;     // [outputs / kPanel, kPanel], as are the others
  const float *errors;     // upper bounds of |W - numbers x scale|
  const float *norms;      // upper bounds of |numbers x scale|
};

// What rounding of sums in float adds to the bound, as a part of |x| |W_v|: of a chain of `inputs` products, and of the few
// operations that follow the exact sums of integers; twice their largest error.
inline double rounding(int64_t inputs) { return (inputs + 16) * 0x1p-23; }

constexpr float kLeast = 1e-30f;     // exceeds what is lost where numbers are too small for a float
constexpr float kMostNorm = 1e18f;   // of rows and of outputs: no product of smaller ones is infinite
constexpr double kUpwards = 1.0001;  // exceeds the rounding of norms and bounds

// Makes the copy of W [outputs, inputs]. A weight that is infinite or NaN makes its output's error NaN.
template <typename T>
void make_copy(const T *weight, uint32_t *panels, float *scales, float *errors, float *norms, int64_t inputs,
               int64_t outputs) {
  const int64_t steps = integer_steps(inputs), count = (outputs + kPanel - 1) / kPanel;
#pragma omp parallel
  {
    std::vector<uint32_t> words(steps);
    std::vector<int8_t> bytes((steps + kLanes) * kWordInputs);
#pragma omp for
    for (int64_t output = 0; output < count * kPanel; ++output) {
      uint32_t *to = panels + output / kPanel * steps * kPanel + output % kPanel;
      if (output >= outputs) {
        scales[output] = errors[output] = norms[output] = 0;
        for (int64_t step = 0; step < steps; ++step) to[step * kPanel] = 0x80808080;
        continue;
      }
      const T *from = weight + output * inputs;
      const float scale =
          quantize_words(from, inputs, [&](int64_t step, uint32_t word) { words[step] = word; }).scale;
      std::memcpy(bytes.data(), words.data(), steps * kWordInputs);
      Floats error{}, norm{};  // in units of the scale, so that no square is lost
      for (int64_t input = 0; scale > 0 && input < inputs; input += kLanes) {  // zeros follow the last input
        const Floats number = widened(bytes.data() + input);
        const Floats difference = load_up_to(from + input, inputs - input) / splat(scale) - number;
        error += difference * difference;
        norm += number * number;
      }
      scales[output] = scale;
      errors[output] = static_cast<float>((scale * std::sqrt(sum(error)) + kLeast) * kUpwards);
      norms[output] = static_cast<float>(scale * std::sqrt(sum(norm)) * kUpwards);
      for (int64_t step = 0; step < steps; ++step) to[step * kPanel] = words[step] ^ 0x80808080;
    }
  }
}

// A row of x as the sum of two rows of eight bits, whose words the caller keeps.
struct SplitRow {
  RowFactors parts[2];
  float of_error, of_norm;  // bound of an output = of_error x its error + of_norm x its norm
};

// Calls `put(part, step, word)` with the words of both parts.
template <typename T, typename Put>
SplitRow split_row(const T *from, int64_t inputs, float *rest, Put put) {
  SplitRow row;
  double squares = 0;
  for (int64_t input = 0; input < inputs; ++input) {
    rest[input] = scalar(from[input]);
    squares += static_cast<double>(rest[input]) * rest[input];
  }
  for (int part = 0; part < 2; ++part) {
    std::vector<uint32_t> words(integer_steps(inputs));
    row.parts[part] = quantize_words(rest, inputs, [&](int64_t step, uint32_t word) {
      words[step] = word;
      put(part, step, word);
    });
    const float scale = row.parts[part].scale;
    for (int64_t input = 0; part == 0 && input < inputs; ++input) {
      int8_t number;
      std::memcpy(&number, reinterpret_cast<const char *>(words.data()) + input, 1);
      rest[input] -= number * scale;
    }
  }
  // The rest of an input is at most half of the second scale, or where that is zero less than 127 times the least scale.
  const double left = 0.5001 * row.parts[1].scale + 127 * std::numeric_limits<float>::min();
  const double norm = std::sqrt(squares), extra = rounding(inputs) * norm + kLeast;
  row.of_error = static_cast<float>((norm + extra) * kUpwards);
  row.of_norm = static_cast<float>((std::sqrt(static_cast<double>(inputs)) * left + extra) * kUpwards);
  return row;
}

// Bounds of the outputs, and the panels that may have the largest ones.
template <typename T, typename Products>
class Bounds {
 public:
  static constexpr int kPairs = kIntegerRowsAtOnce / 2;

  Bounds(const MapCall<T> &call, const Copy &copy)
      : call_(call), copy_(copy), rows_(call.rows), split_(rows_), words_(2 * rows_ * steps_ * Products::kWords),
        highest_(rows_ * panels_), least_(rows_, -std::numeric_limits<float>::infinity()) {}

  int64_t panels() const { return panels_; }

  // Splits the rows of x.
  void split() {
#pragma omp for
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t block = row / kPairs, pairs = width(block), place = row % kPairs;
      uint32_t *to = words_.data() + 2 * block * kPairs * steps_ * Products::kWords + 2 * place;
      std::vector<float> rest(call_.inputs);
      split_[row] = split_row(call_.x + row * call_.inputs, call_.inputs, rest.data(),
                              [&](int part, int64_t step, uint32_t word) {
                                Products::put(to + step * Products::kWords * 2 * pairs + part, 2 * pairs, word);
                              });
    }
  }

  // Computes the bounds of all panels; each thread those of some.
  void compute() {
    std::vector<float> least(rows_, -std::numeric_limits<float>::infinity());
#pragma omp for
    for (int64_t panel = 0; panel < panels_; ++panel) {
      for (int64_t first = 0; first < rows_; first += kPairs) bound<kPairs>(first, width(first / kPairs), panel, least);
    }
#pragma omp critical(orca_likeliest)
    for (int64_t row = 0; row < rows_; ++row) least_[row] = std::max(least_[row], least[row]);
#pragma omp barrier
  }

  // Whether no product of the rows is infinite or NaN.
  bool exist() const {
    return std::all_of(split_.begin(), split_.end(), [](const SplitRow &row) { return row.of_error < kMostNorm; });
  }

  // Whether a panel may have the largest output of one of the rows from `begin` to `end`.
  bool may_have(int64_t begin, int64_t end, int64_t panel) const {
    for (int64_t row = begin; row < end; ++row) {
      if (highest_[panel * rows_ + row] >= threshold(row)) return true;
    }
    return false;
  }

 private:
  // At least one output is as large. Outputs of bfloat16 are equal to larger ones if they are within a rounding.
  float threshold(int64_t row) const {
    return std::is_same_v<T, float> ? least_[row] : least_[row] - 0x1.02p-7f * std::fabs(least_[row]);
  }

  int64_t width(int64_t block) const { return std::min<int64_t>(kPairs, rows_ - block * kPairs); }

  template <int kCount>
  void bound(int64_t first, int64_t pairs, int64_t panel, std::vector<float> &least) {
    if constexpr (kCount > 1) {
      if (pairs < kCount) return bound<kCount - 1>(first, pairs, panel, least);
    }
    alignas(64) int32_t sums[2 * kCount][kPanel];
    const uint32_t *words = words_.data() + 2 * first * steps_ * Products::kWords;
    const uint32_t *panel_of_copy = copy_.panels + panel * steps_ * kPanel;
    const Ahead ahead(panel_of_copy, steps_ * kPanel * 4, first / kPairs, (rows_ + kPairs - 1) / kPairs);
    Products::template multiply<2 * kCount>(words, panel_of_copy, steps_, ahead, sums);
    const int64_t column = panel * kPanel, outputs = std::min<int64_t>(kPanel, call_.outputs - column);
    for (int pair = 0; pair < kCount; ++pair) {
      const SplitRow &row = split_[first + pair];
      alignas(64) float lower[kPanel], upper[kPanel];
      for (int lane = 0; lane < kPanel; lane += kLanes) {
        const Floats first_part = scaled(sums[2 * pair] + lane, row.parts[0]);
        const Floats second_part = scaled(sums[2 * pair + 1] + lane, row.parts[1]);
        const Floats value = (first_part + second_part) * load(copy_.scales + column + lane);
        const Floats error = load(copy_.errors + column + lane) * splat(row.of_error) +
                             load(copy_.norms + column + lane) * splat(row.of_norm) + splat(kLeast);
        store(lower + lane, value - error);
        store(upper + lane, value + error);
      }
      least[first + pair] = std::max(least[first + pair], most_of(lower, outputs));
      highest_[panel * rows_ + first + pair] = most_of(upper, outputs);
    }
  }

  // The largest of the first `count` values of a panel; the others are overwritten.
  static float most_of(float (&values)[kPanel], int64_t count) {
    std::fill(values + count, values + kPanel, -std::numeric_limits<float>::infinity());
    Floats most = load(values);
    for (int lane = kLanes; lane < kPanel; lane += kLanes) most = larger(most, load(values + lane));
    return largest(most);
  }

  static Floats scaled(const int32_t *sums, RowFactors factors) {
    const Words exact = load_as<Words>(sums) - kExcess * factors.sum;
    return floats(reinterpreted<Ints>(exact)) * splat(factors.scale);
  }

  const MapCall<T> &call_;
  const Copy &copy_;
  const int64_t rows_, steps_ = integer_steps(call_.inputs), panels_ = (call_.outputs + kPanel - 1) / kPanel;
  std::vector<SplitRow> split_;
  std::vector<uint32_t> words_;   // of a block of up to kPairs rows: [steps, words of a step, 2 x rows]
  std::vector<float> highest_;    // [panels, rows]: upper bounds of a panel's outputs
  std::vector<float> least_;      // [rows]: the largest lower bound of an output
};

// Writes the place of each row's largest output to `places` [rows], and returns true. Returns false and writes nothing if
// a row has an infinity, NaN or larger numbers than kMostNorm allows, or if more than `most` outputs of a row would be
// computed, on average over the blocks of rows. A panel is computed for all rows of a block, which takes no longer than
// for one of them. The computed outputs are left in call.y [rows, outputs].
template <typename Products, typename Blocks, typename Call>
bool likeliest(const Call &call, const Copy &copy, int64_t *places, int64_t most) {
  using T = typename Call::Element;
  Bounds<T, Products> bounds(call, copy);
  const Blocks all{call, 0, call.rows};
  static thread_local Lines<uint32_t> memory;
  memory.resize(std::max<size_t>(memory.size(), call.rows * Blocks::row_words(call)));
  uint32_t *words = memory.data();
  std::vector<std::pair<int64_t, int64_t>> chosen;  // panel and block
  most = most / kPanel * all.count;
#pragma omp parallel
  {
    bounds.split();
    bounds.compute();
#pragma omp single
    for (int64_t panel = 0; bounds.exist() && panel < bounds.panels(); ++panel) {
      for (int64_t block = 0; block < all.count; ++block) {
        if (bounds.may_have(all.begin(block), all.begin(block + 1), panel)) chosen.emplace_back(panel, block);
      }
    }
    const int64_t count = static_cast<int64_t>(chosen.size());
    if (count <= most) {
      Blocks blocks{call, 0, call.rows};
#pragma omp for
      for (int64_t block = 0; block < blocks.count; ++block) blocks.pack(words, block);
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < count; ++i) blocks.compute(words, chosen[i].second, chosen[i].first);
    }
  }
  if (chosen.empty() || static_cast<int64_t>(chosen.size()) > most) return false;
  std::fill_n(places, call.rows, -1);
  for (const auto &[panel, block] : chosen) {  // panels in ascending order
    const int64_t end = std::min((panel + 1) * kPanel, call.outputs);
    for (int64_t row = all.begin(block); row < all.begin(block + 1); ++row) {
      const T *outputs = call.y + row * call.outputs;
      int64_t &place = places[row];
      for (int64_t output = panel * kPanel; output < end; ++output) {
        if (place < 0 || scalar(outputs[output]) > scalar(outputs[place])) place = output;
      }
    }
  }
  return true;
}

}  // namespace orca
#endif
