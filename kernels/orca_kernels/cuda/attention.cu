// Attention of every request of an iteration in one launch (the paper, section 5: the thread blocks of all requests'
// kernels, concatenated), in float32; for 16-bit elements see tensor_core_attention.cu. A thread block takes entries of
// the work list (plan.cu) for one key/value head. If a tile's context is split, each split has a partial
// result, and orca_merge combines them (split-K). ORCA_HEAD_DIM is D, up to 256: shared memory stays within the 48 KiB
// that every device has.
#include "attention.cuh"
#include "groups.cuh"

constexpr int kTile = kDim <= 64 ? 64 : 32;  // slots in shared memory at a time
constexpr int kRows = kDim > 128 ? 8 : 16;   // rows of a thread block
constexpr int kWarps = 4;
constexpr int kOwn = kRows / kWarps;               // rows of a warp
constexpr int kPart = (kDim + kWarp - 1) / kWarp;  // elements of an output row per lane
constexpr int kThreads = kWarps * kWarp;

// Copies a head's blocks of `slots` slots, listed in `blocks`, to shared memory, when all threads have read the old
// contents.
__device__ inline void hold(float *held, const float *pool, const int *blocks, int slots, int num_kv_heads,
                            int kv_head) {
  constexpr int kSize = kBlock * kDim;
  __syncthreads();
  for (int i = threadIdx.x; i < (slots + kBlock - 1) / kBlock * kSize; i += kThreads) {
    held[i] = pool[(static_cast<Index>(blocks[i / kSize]) * num_kv_heads + kv_head) * kSize + i % kSize];
  }
  __syncthreads();
}

extern "C" __global__ void orca_attention(const float *query, const float *key_pool, const float *value_pool,
                                          const Index *starts, const Index *contexts, const int *block_table,
                                          const Work *works, const Counts *counts, float *output, float *parts,
                                          int heads, int num_kv_heads, int table_width, int query_stride,
                                          int window, float scale) {  // the scale is for powers of two
  __shared__ float held[kTile * kDim];  // a tile's keys, then its values
  __shared__ float queries[kRows * kDim], scores[kRows * kTile];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int kv_head = blockIdx.y, num_heads = heads * num_kv_heads;
  for (int index = blockIdx.x; index < counts->works; index += gridDim.x) {
    const Work work = works[index];
    const int first = work.first, end = work.end;
    const Index start = starts[work.request];
    const int context = static_cast<int>(contexts[work.request]);
    const int left = static_cast<int>(starts[work.request + 1] - start) * heads - first;
    const int num_rows = left < kRows ? left : kRows;
    const int *table = block_table + static_cast<Index>(work.request) * table_width;
    __syncthreads();  // the queries of the entry before have been read
    for (int i = threadIdx.x; i < num_rows * kDim; i += kThreads) {
      const int row = first + i / kDim, head = kv_head * heads + row % heads;
      queries[i] = query[(start + row / heads) * query_stride + head * kDim + i % kDim] * scale;
    }
    float accumulated[kOwn][kPart] = {}, top[kOwn], total[kOwn] = {};
#pragma unroll
    for (int own = 0; own < kOwn; ++own) top[own] = kLowest;
    for (int tile = work.begin; tile < end; tile += kTile) {
      const int slots = end - tile < kTile ? end - tile : kTile;
      hold(held, key_pool, table + tile / kBlock, slots, num_kv_heads, kv_head);
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        const int row = warp * kOwn + own;
        if (row >= num_rows) break;
        const int here = context + (first + row) / heads;
        float row_scores[kTile / kWarp], most = kLowest;
#pragma unroll
        for (int half = 0; half < kTile / kWarp; ++half) {
          const int slot = half * kWarp + lane;
          const int distance = here - (tile + slot);
          row_scores[half] = kLowest;
          if (slot < slots && distance >= 0 && (!window || distance < window)) {
            const float *key = held + slot / kBlock * kBlock * kDim + slot % kBlock;
            float dot = 0;
            for (int d = 0; d < kDim; ++d) dot += queries[row * kDim + d] * key[d * kBlock];
            row_scores[half] = dot;
          }
          most = fmaxf(most, row_scores[half]);
        }
        most = fmaxf(warp_max(most), top[own]);
        float sum = 0;
#pragma unroll
        for (int half = 0; half < kTile / kWarp; ++half) {
          const float weight = row_scores[half] == kLowest ? 0 : exp2f(row_scores[half] - most);
          scores[row * kTile + half * kWarp + lane] = weight;
          sum += weight;
        }
        const float shrink = exp2f(top[own] - most);
        total[own] = total[own] * shrink + warp_sum(sum);
        top[own] = most;
#pragma unroll
        for (int part = 0; part < kPart; ++part) accumulated[own][part] *= shrink;
      }
      hold(held, value_pool, table + tile / kBlock, slots, num_kv_heads, kv_head);
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        const int row = warp * kOwn + own;
        if (row >= num_rows) break;
        for (int slot = 0; slot < slots; ++slot) {
          const float weight = scores[row * kTile + slot];
          if (weight == 0) continue;  // includes slots that were never written
#pragma unroll
          for (int part = 0; part < kPart; ++part) {
            const int d = part * kWarp + lane;
            if (d < kDim) accumulated[own][part] += weight * held[slot * kDim + d];
          }
        }
      }
    }
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int row = warp * kOwn + own;
      if (row >= num_rows) break;
      const int head = kv_head * heads + (first + row) % heads;
      const Index place = (start + (first + row) / heads) * num_heads + head;
      const Index partial = static_cast<Index>(work.part + row) * num_kv_heads + kv_head;
      float *mine = work.part < 0 ? nullptr : parts + partial * (kDim + 2);
#pragma unroll
      for (int part = 0; part < kPart; ++part) {
        const int d = part * kWarp + lane;
        if (d >= kDim) break;
        if (work.part < 0) {
          output[place * kDim + d] = accumulated[own][part] / total[own];
        } else {
          mine[d] = accumulated[own][part];
        }
      }
      if (work.part >= 0 && lane == 0) {
        mine[kDim] = top[own];
        mine[kDim + 1] = total[own];
      }
    }
  }
}

// Write four elements from d on of a key, or of a value, to slot `slot` of a head's block.
__device__ inline void put_key(float *block, const Group<float, kWide> &key, int d, int slot) {
#pragma unroll
  for (int n = 0; n < kWide; ++n) block[(d + n) * kBlock + slot] = key.item[n];
}

__device__ inline void put_value(float *block, const Group<float, kWide> &value, int d, int slot) {
  write(block + slot * kDim + d, value);
}

#include "store.cuh"
