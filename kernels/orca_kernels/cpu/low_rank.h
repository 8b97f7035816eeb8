// y += B A x for the rows of a batch that use an adapter (LoRA). Both factors are panels of linear.h, so that a row's
// result does not depend on the other rows. One call has all adapters: a recorded iteration reads which row uses which.
#pragma once

#include <algorithm>
#include <vector>

#include "linear.h"
#include "rows.h"

namespace orca {

// The factors of one adapter for one map.
struct LowRankFactors {
  int64_t adapter;
  const uint32_t *down, *up;  // panels of A [rank, inputs] and B [outputs, rank]
  int64_t rank;
};

template <typename T>
struct LowRankCall {
  const T *x;               // [rows, inputs]
  const int64_t *adapters;  // [rows], 0 for none
  const LowRankFactors *factors;
  T *y;          // [rows, outputs]
  T *activated;  // [rows, outputs], whose rows that have factors become GeLU of y's; or null
  int64_t rows, inputs, outputs, num_factors;
};

// A run of so many adjacent rows, as a prompt's, is computed where it lies; the rows of shorter runs are copied together.
constexpr int64_t kLongRun = kRowsAtOnce;

template <typename T>
void gather_rows(const T *from, const std::vector<int64_t> &rows, int64_t size, Lines<T> &to) {
  to.resize(std::max(to.size(), rows.size() * size));
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(from + rows[i] * size, size, to.data() + i * size);
}

template <typename T>
void activate_row(const T *from, T *to, int64_t size) {
  for (int64_t first = 0; first < size; first += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, size - first);
    T values[kLanes] = {};
    std::copy_n(from + first, count, values);
    store(values, gelu_tanh(load(values)));
    std::copy_n(values, count, to + first);
  }
}

// y += B A x for `rows` rows of one adapter. `Call`: the product of linear.h whose panels the factors have.
template <typename Call, typename T>
void low_rank_product(const LowRankCall<T> &call, const LowRankFactors &factors, const T *x, T *y, int64_t rows) {
  static thread_local Lines<T> narrow;  // reused by later calls
  narrow.resize(std::max<size_t>(narrow.size(), rows * factors.rank));
  linear(Call{{x, nullptr, nullptr, narrow.data(), nullptr, rows, call.inputs, factors.rank}, factors.down});
  linear(Call{{narrow.data(), nullptr, y, y, nullptr, rows, factors.rank, call.outputs}, factors.up});
}

template <typename Call, typename T>
void add_low_rank_of(const LowRankCall<T> &call, const LowRankFactors &factors) {
  static thread_local Lines<T> some_x, some_y;
  static thread_local std::vector<int64_t> short_runs;
  const int64_t inputs = call.inputs, outputs = call.outputs;
  short_runs.clear();
  for (int64_t first = 0, end; first < call.rows; first = end) {
    for (end = first; end < call.rows && call.adapters[end] == factors.adapter;) ++end;
    if (end - first >= kLongRun) {
      low_rank_product<Call>(call, factors, call.x + first * inputs, call.y + first * outputs, end - first);
    } else {
      for (int64_t row = first; row < end; ++row) short_runs.push_back(row);
    }
    end = std::max(end, first + 1);
  }
  if (short_runs.empty()) return;
  const int64_t count = short_runs.size(), front = short_runs.front();
  if (short_runs.back() - front + 1 == count) {  // a single run
    return low_rank_product<Call>(call, factors, call.x + front * inputs, call.y + front * outputs, count);
  }
  gather_rows(call.x, short_runs, inputs, some_x);
  gather_rows(call.y, short_runs, outputs, some_y);
  low_rank_product<Call>(call, factors, some_x.data(), some_y.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(some_y.data() + i * outputs, outputs, call.y + short_runs[i] * outputs);
  }
}

template <typename Call, typename T>
void add_low_rank(const LowRankCall<T> &call) {
  for (int64_t i = 0; i < call.num_factors; ++i) {
    const LowRankFactors &factors = call.factors[i];
    add_low_rank_of<Call>(call, factors);
    if (!call.activated) continue;
#pragma omp parallel for if (call.rows * call.outputs > kParallelElements)
    for (int64_t row = 0; row < call.rows; ++row) {
      const int64_t place = row * call.outputs;
      if (call.adapters[row] == factors.adapter) activate_row(call.y + place, call.activated + place, call.outputs);
    }
  }
}

}  // namespace orca
