// Stores keys and values of new tokens in the pools, alone or with the rotary embedding of queries and keys. Included by
// the attention kernels, whose `put_key` and `put_value` know the order of a head's block. Rows of queries, keys and
// values begin at multiples of 16 bytes, and half a head is a multiple of that.
#pragma once

#include "groups.cuh"

constexpr int kStoreThreads = 256;
constexpr int kHalf = kDim / 2;
constexpr int kGroups = kHalf / kWide;  // pairs of groups of a head: one of the low half, and one of the high half
static_assert(kHalf % kWide == 0, "half a head has whole groups");

// A token's place in the pools.
struct Slot {
  Index block;
  int slot;  // in the block

  __device__ inline explicit Slot(Index slot) : block(slot / kBlock), slot(static_cast<int>(slot % kBlock)) {}
  // Returns the index of the first element of a head's block.
  __device__ inline Index begin(int head, int num_heads) const { return (block * num_heads + head) * kBlock * kDim; }
};

// Writes the value elements d and d + D/2 on of a head to the pool.
__device__ inline void store_value(Element *pool, const Element *value, int d, int slot) {
  put_value(pool, read<kWide>(value + d), d, slot);
  put_value(pool, read<kWide>(value + kHalf + d), kHalf + d, slot);
}

// Writes keys and values [S, G, D], with row strides, to their slots of the pools: a thread block per token.
extern "C" __global__ void orca_store(const Element *key, const Element *value, Element *key_pool, Element *value_pool,
                                      const Index *slots, int num_heads, int key_stride, int value_stride) {
  const Slot slot(slots[blockIdx.x]);
  key += blockIdx.x * static_cast<Index>(key_stride);
  value += blockIdx.x * static_cast<Index>(value_stride);
  for (int i = threadIdx.x; i < num_heads * kGroups; i += kStoreThreads) {
    const int head = i / kGroups, d = i % kGroups * kWide;
    const Index begin = slot.begin(head, num_heads);
    const Element *from = key + head * kDim;
    put_key(key_pool + begin, read<kWide>(from + d), d, slot.slot);
    put_key(key_pool + begin, read<kWide>(from + kHalf + d), kHalf + d, slot.slot);
    store_value(value_pool + begin, value + head * kDim, d, slot.slot);
  }
}

// Rotates queries [S, N, D] in place (halves, as in Llama) by cosine and sine [S, D], and writes rotated keys and values
// [S, G, D] to their slots of the pools: one or more thread blocks per token. Keys are not written back.
extern "C" __global__ void orca_rotate_and_store(Element *query, const Element *key, const Element *value,
                                                 const float *cosine, const float *sine, Element *key_pool,
                                                 Element *value_pool, const Index *slots, int num_queries,
                                                 int num_heads, int query_stride, int key_stride, int value_stride) {
  const Slot slot(slots[blockIdx.x]);
  query += blockIdx.x * static_cast<Index>(query_stride);
  key += blockIdx.x * static_cast<Index>(key_stride);
  value += blockIdx.x * static_cast<Index>(value_stride);
  cosine += blockIdx.x * static_cast<Index>(kDim);
  sine += blockIdx.x * static_cast<Index>(kDim);
  const int size = (num_queries + 2 * num_heads) * kGroups;
  for (int i = blockIdx.y * kStoreThreads + threadIdx.x; i < size; i += gridDim.y * kStoreThreads) {
    const int d = i % kGroups * kWide, head = i / kGroups - num_queries;
    if (head >= num_heads) {
      const int own = head - num_heads;
      store_value(value_pool + slot.begin(own, num_heads), value + own * kDim, d, slot.slot);
      continue;
    }
    const Turn<kWide> turn(cosine + d, sine + d, kHalf);
    const Element *from = head < 0 ? query + (head + num_queries) * kDim : key + head * kDim;
    auto lows = read<kWide>(from + d), highs = read<kWide>(from + kHalf + d);
    turn.apply(lows, highs);
    if (head < 0) {
      Element *to = query + (head + num_queries) * kDim + d;
      write(to, lows);
      write(to + kHalf, highs);
    } else {
      Element *to = key_pool + slot.begin(head, num_heads);
      put_key(to, lows, d, slot.slot);
      put_key(to, highs, kHalf + d, slot.slot);
    }
  }
}
