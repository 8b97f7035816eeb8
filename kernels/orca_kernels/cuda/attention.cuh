// Common code of the attention kernels: the shape of the pools and the splits of a context. ORCA_HEAD_DIM is D.
#pragma once

#include "element.cuh"

constexpr int kBlock = 16;  // slots per block of the pools
constexpr int kDim = ORCA_HEAD_DIM;

// The splits of a context: `count` of them, `size` slots each, from `begin` to `end`.
struct Splits {
  int begin, end, size, count;
};

// Divides the context of rows at positions `first` to `last` into splits of `split_size` slots, or `most` larger ones.
// Depends only on the request's own length, so that the rest of the batch does not change the order of additions.
__device__ inline Splits splits_of(int first, int last, int window, int most, int split_size) {
  constexpr int kWhole = 64;  // slots that a thread block reads at a time
  const int begin = window && first >= window ? (first - window + 1) / kWhole * kWhole : 0, length = last + 1 - begin;
  const int needed = (length + split_size - 1) / split_size, count = needed < most ? needed : most;
  const int size = ((length + count - 1) / count + kWhole - 1) / kWhole * kWhole;
  return {begin, last + 1, size, (length + size - 1) / size};
}
