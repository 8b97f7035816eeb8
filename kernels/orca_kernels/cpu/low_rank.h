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

template <typename T>
void gather_rows(const T *from, const std::vector<int64_t> &rows, int64_t size, T *to) {
#pragma omp parallel for if (int64_t(rows.size()) * size > kParallelElements)
  for (int64_t i = 0; i < int64_t(rows.size()); ++i) std::copy_n(from + rows[i] * size, size, to + i * size);
}

template <typename T>
void scatter_rows(const T *from, const std::vector<int64_t> &rows, int64_t size, T *to) {
#pragma omp parallel for if (int64_t(rows.size()) * size > kParallelElements)
  for (int64_t i = 0; i < int64_t(rows.size()); ++i) std::copy_n(from + i * size, size, to + rows[i] * size);
}

template <typename T>
void activate_rows(const T *from, const std::vector<int64_t> &rows, int64_t size, T *to) {
#pragma omp parallel for if (int64_t(rows.size()) * size > kParallelElements)
  for (int64_t i = 0; i < int64_t(rows.size()); ++i) {
    for (int64_t first = 0; first < size; first += kLanes) {
      const int64_t place = rows[i] * size + first, count = std::min<int64_t>(kLanes, size - first);
      T values[kLanes] = {};
      std::copy_n(from + place, count, values);
      store(values, gelu_tanh(load(values)));
      std::copy_n(values, count, to + place);
    }
  }
}

// `Call`: the product of linear.h whose panels the factors have.
template <typename Call, typename T>
void add_low_rank(const LowRankCall<T> &call) {
  static thread_local Lines<T> narrow, some_x, some_y;  // reused by later calls
  static thread_local std::vector<int64_t> rows;
  for (int64_t i = 0; i < call.num_factors; ++i) {
    const LowRankFactors &factors = call.factors[i];
    rows.clear();
    for (int64_t row = 0; row < call.rows; ++row) {
      if (call.adapters[row] == factors.adapter) rows.push_back(row);
    }
    if (rows.empty()) continue;
    const int64_t count = rows.size(), first = rows.front();
    const bool adjacent = rows.back() - first + 1 == count;  // as a prompt's: nothing is copied
    const T *x = call.x + first * call.inputs;
    T *y = call.y + first * call.outputs;
    if (!adjacent) {
      some_x.resize(count * call.inputs);
      some_y.resize(count * call.outputs);
      gather_rows(call.x, rows, call.inputs, some_x.data());
      gather_rows<T>(call.y, rows, call.outputs, some_y.data());
      x = some_x.data();
      y = some_y.data();
    }
    narrow.resize(count * factors.rank);
    linear(Call{{x, nullptr, nullptr, narrow.data(), count, call.inputs, factors.rank, false}, factors.down});
    linear(Call{{narrow.data(), nullptr, y, y, count, factors.rank, call.outputs, false}, factors.up});
    if (!adjacent) scatter_rows<T>(y, rows, call.outputs, call.y);
    if (call.activated) activate_rows(call.y, rows, call.outputs, call.activated);
  }
}

}  // namespace orca
