// Attention of every request of an iteration in one launch (the paper, section 5: the thread blocks of all requests'
// kernels, concatenated), in float32; for 16-bit elements see tensor_core_attention.cu. A thread block computes one
// tile, (request, first row), for one key/value head and one split of the context. It has up to 16 rows; a row is a
// token and a query head that shares the key/value head. If there are several splits, each writes a partial result, and
// orca_merge combines them (split-K, for long contexts). ORCA_HEAD_DIM is D, up to 256: shared memory stays within the
// 48 KiB that every device has.
#include "attention.cuh"

constexpr int kTile = kDim <= 64 ? 64 : 32;  // slots in shared memory at a time
constexpr int kRows = kDim > 128 ? 8 : 16;   // rows of a thread block
constexpr int kWarps = 4;
constexpr int kOwn = kRows / kWarps;               // rows of a warp
constexpr int kPart = (kDim + kWarp - 1) / kWarp;  // elements of an output row per lane
constexpr int kThreads = kWarps * kWarp;

// Copies a head's blocks of `slots` slots, listed in `blocks`, to shared memory, when all threads have read the old
// contents.
__device__ inline void hold(float *held, const float *pool, const Index *blocks, int slots, Index num_kv_heads,
                            Index kv_head) {
  constexpr int kSize = kBlock * kDim;
  __syncthreads();
  for (int i = threadIdx.x; i < (slots + kBlock - 1) / kBlock * kSize; i += kThreads) {
    held[i] = pool[(blocks[i / kSize] * num_kv_heads + kv_head) * kSize + i % kSize];
  }
  __syncthreads();
}

extern "C" __global__ void orca_attention(const float *query, const float *key_pool, const float *value_pool,
                                          const Index *starts, const Index *contexts, const Index *block_table,
                                          const int *tiles, float *output, float *parts, Index num_heads,
                                          Index num_kv_heads, Index table_width, Index query_stride, Index window,
                                          Index split_size, Index most_splits, float scale) {
  __shared__ float held[kTile * kDim];  // a tile's keys, then its values
  __shared__ float queries[kRows * kDim], scores[kRows * kTile];
  const int request = tiles[2 * blockIdx.x], warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const Index heads = num_heads / num_kv_heads, kv_head = blockIdx.y;
  const Index first = tiles[2 * blockIdx.x + 1];
  const Index start = starts[request], context = contexts[request];
  const Index left = (starts[request + 1] - start) * heads - first;
  const int num_rows = static_cast<int>(left < kRows ? left : kRows);
  const Index *table = block_table + request * table_width;
  for (int i = threadIdx.x; i < num_rows * kDim; i += kThreads) {
    const Index row = first + i / kDim, token = start + row / heads, head = kv_head * heads + row % heads;
    queries[i] = query[token * query_stride + head * kDim + i % kDim] * scale;
  }
  const Index last_position = context + (first + num_rows - 1) / heads;
  const bool increment = starts[request + 1] - start == 1;  // a prompt has enough thread blocks without splits
  const Splits splits =
      splits_of(context + first / heads, last_position, window, increment ? most_splits : 1, split_size);
  if (blockIdx.z >= splits.count) return;
  const Index begin = splits.begin + blockIdx.z * splits.size;
  const Index end = begin + splits.size < splits.end ? begin + splits.size : splits.end;
  float accumulated[kOwn][kPart] = {}, top[kOwn], total[kOwn] = {};
  for (int own = 0; own < kOwn; ++own) top[own] = kLowest;
  for (Index tile = begin; tile < end; tile += kTile) {
    const int slots = static_cast<int>(end - tile < kTile ? end - tile : kTile);
    hold(held, key_pool, table + tile / kBlock, slots, num_kv_heads, kv_head);
    for (int own = 0; own < kOwn; ++own) {
      const int row = warp * kOwn + own;
      if (row >= num_rows) break;
      const Index here = context + (first + row) / heads;
      float row_scores[kTile / kWarp], most = kLowest;
      for (int half = 0; half < kTile / kWarp; ++half) {
        const int slot = half * kWarp + lane;
        const Index distance = here - (tile + slot);
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
      for (int half = 0; half < kTile / kWarp; ++half) {
        const float weight = row_scores[half] == kLowest ? 0 : expf(row_scores[half] - most);
        scores[row * kTile + half * kWarp + lane] = weight;
        sum += weight;
      }
      const float shrink = expf(top[own] - most);
      total[own] = total[own] * shrink + warp_sum(sum);
      top[own] = most;
      for (int part = 0; part < kPart; ++part) accumulated[own][part] *= shrink;
    }
    hold(held, value_pool, table + tile / kBlock, slots, num_kv_heads, kv_head);
    for (int own = 0; own < kOwn; ++own) {
      const int row = warp * kOwn + own;
      if (row >= num_rows) break;
      for (int slot = 0; slot < slots; ++slot) {
        const float weight = scores[row * kTile + slot];
        if (weight == 0) continue;  // includes slots that were never written
        for (int part = 0; part < kPart; ++part) {
          const int d = part * kWarp + lane;
          if (d < kDim) accumulated[own][part] += weight * held[slot * kDim + d];
        }
      }
    }
  }
  for (int own = 0; own < kOwn; ++own) {
    const int row = warp * kOwn + own;
    if (row >= num_rows) break;
    const Index token = start + (first + row) / heads, head = kv_head * heads + (first + row) % heads;
    const Index place = token * num_heads + head;
    float *mine = parts + ((request * num_heads + head) * most_splits + blockIdx.z) * (kDim + 2);
    for (int part = 0; part < kPart; ++part) {
      const int d = part * kWarp + lane;
      if (d >= kDim) break;
      if (splits.count == 1) {
        output[place * kDim + d] = accumulated[own][part] / total[own];
      } else {
        mine[d] = accumulated[own][part];
      }
    }
    if (splits.count > 1 && lane == 0) {
      mine[kDim] = top[own];
      mine[kDim + 1] = total[own];
    }
  }
}
