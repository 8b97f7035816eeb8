// Work that the threads of a block share, for kernels with one thread block per row: sums, the largest key, the search
// of a threshold and of a place in a running sum. All of them add integers, whose sums do not depend on the order: a
// result is the same bit for bit on every device and beside any other rows.
#pragma once

#include "element.cuh"

typedef unsigned long long Wide;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigit = 11;  // bits of a key that a pass of `threshold` decides
constexpr int kBuckets = 1 << kDigit;
static_assert(kBuckets == 2 * kThreads, "a thread sums two buckets");

// An element of a row. Without a weight it does not count.
struct Item {
  Wide key, weight;
};

// Returns the sum of the values of the warp's lanes up to this one, which is included.
__device__ inline Wide warp_scan(Wide value) {
  for (int step = 1; step < kWarp; step *= 2) {
    const Wide before = __shfl_up_sync(kAllLanes, value, step);
    if (threadIdx.x % kWarp >= step) value += before;
  }
  return value;
}

// Returns the sum of the values of the threads up to this one, which is included; `total` is that of all.
__device__ inline Wide block_scan(Wide value, Wide &total) {
  __shared__ Wide parts[kWarps];
  const int own = threadIdx.x / kWarp;
  value = warp_scan(value);
  __syncthreads();
  if (threadIdx.x % kWarp == kWarp - 1) parts[own] = value;
  __syncthreads();
  total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < own) value += parts[warp];
    total += parts[warp];
  }
  return value;
}

// Returns the sum of weight(i) over a row's elements i.
template <class Weight>
__device__ Wide row_sum(Weight weight, Index size) {
  Wide part = 0, total;
  for (Index i = threadIdx.x; i < size; i += kThreads) part += weight(i);
  block_scan(part, total);
  return total;
}

// Returns the largest key(i) of a row's elements i.
template <class Key>
__device__ Wide largest(Key key, Index size) {
  __shared__ Wide parts[kWarps];
  Wide most = 0;
  for (Index i = threadIdx.x; i < size; i += kThreads) {
    const Wide other = key(i);
    if (other > most) most = other;
  }
  for (int step = kWarp / 2; step; step /= 2) {
    const Wide other = __shfl_xor_sync(kAllLanes, most, step);
    if (other > most) most = other;
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) {
    if (parts[warp] > most) most = parts[warp];
  }
  return most;
}

// Adds to a bucket of 64 bits, whose halves are in two arrays: shared memory has fast atomics of 32 bits only.
__device__ inline void add(unsigned *low, unsigned *high, Wide value) {
  const unsigned part = static_cast<unsigned>(value), before = atomicAdd(low, part);
  const unsigned rest = static_cast<unsigned>(value >> 32) + (before + part < before);
  if (rest) atomicAdd(high, rest);
}

// What the threads of `threshold` share; once per kernel, not once per use.
struct Search {
  unsigned low[kBuckets], high[kBuckets];
  Wide digit, above, inside;
};
__device__ inline Search &shared_search() {
  __shared__ Search search;
  return search;
}

// Returns a key such that the elements with this key or a larger one are the fewest of the largest keys, equal ones
// together, that weigh target_of(total weight) or more; 0 if all elements weigh less. A radix search from the highest
// of `bits` bits, a digit per pass: every pass sums the weights by the digit, of the elements that have the digits found
// before. `target_of` returns 1 or more.
template <class Items, class Target>
__device__ Wide threshold(Items items, Index size, int bits, Target target_of) {
  Search &shared = shared_search();
  unsigned *low = shared.low, *high = shared.high;
  Wide found = 0, target = 0, total;
  for (int rest = bits; rest > 0;) {
    const int width = rest < kDigit ? rest : kDigit;
    rest -= width;
    __syncthreads();
    for (int i = threadIdx.x; i < kBuckets; i += kThreads) low[i] = high[i] = 0;
    __syncthreads();
    for (Index i = threadIdx.x; i < size; i += kThreads) {
      const Item item = items(i);
      if (!item.weight || item.key >> rest >> width != found) continue;
      const int bucket = static_cast<int>(item.key >> rest & ((1 << width) - 1));
      add(low + bucket, high + bucket, item.weight);
    }
    __syncthreads();
    const int bucket = kBuckets - 1 - 2 * threadIdx.x;  // this one and the one below: from the largest keys on
    const Wide weights[] = {static_cast<Wide>(high[bucket]) << 32 | low[bucket],
                            static_cast<Wide>(high[bucket - 1]) << 32 | low[bucket - 1]};
    Wide before = block_scan(weights[0] + weights[1], total) - weights[0] - weights[1];
    if (rest + width == bits) {
      target = target_of(total);
      if (target > total) return 0;
    }
    for (int half = 0; half < 2; ++half) {
      if (before < target && target <= before + weights[half]) {
        shared.digit = bucket - half;
        shared.above = before;
        shared.inside = weights[half];
      }
      before += weights[half];
    }
    __syncthreads();
    found = found << width | shared.digit;
    target -= shared.above;
    if (shared.inside == target) return found << rest;  // all elements of the bucket are needed
  }
  return found;
}

// Returns the first i for which weight(0) + … + weight(i) exceeds fraction / 2^64 of the row's sum. Each warp sums one
// part of the row, and the warp in whose part the place is walks through it.
template <class Weight>
__device__ Index place_of(Weight weight, Index size, Wide fraction) {
  __shared__ Index place;
  const int lane = threadIdx.x % kWarp;
  const Index length = (size + kThreads - 1) / kThreads * kWarp, begin = threadIdx.x / kWarp * length;
  const Index end = begin + length < size ? begin + length : size;
  Wide own = 0, total;
  for (Index i = begin + lane; i < end; i += kWarp) own += weight(i);
  if (threadIdx.x == 0) place = size - 1;
  const Wide upto = block_scan(own, total), target = __umul64hi(fraction, total);
  Wide sum = __shfl_sync(kAllLanes, upto - own, 0);
  if (sum <= target && target < __shfl_sync(kAllLanes, upto, kWarp - 1)) {
    for (Index first = begin; sum <= target; first += kWarp) {
      const Wide value = first + lane < end ? weight(first + lane) : 0, here = sum + warp_scan(value);
      if (here - value <= target && target < here) place = first + lane;
      sum = __shfl_sync(kAllLanes, here, kWarp - 1);
    }
  }
  __syncthreads();
  return place;
}
