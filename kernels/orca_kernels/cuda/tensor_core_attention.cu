// Attention of every request of an iteration in one launch for 16-bit elements, on tensor cores (for the launch, and
// for float32, see attention.cu). A thread block has up to 64 rows of a request, 16 per warp; a row is a token and a
// query head that shares the key/value head. An increment usually has at most 16 rows; then each of the four warps
// computes every fourth block of the context, and the partial results are merged at the end.
//
// A head's block of the pools has the order in which the lanes of a warp hold the second factor of a 16 x 16 by 16 x 8
// product (PTX ISA, "Matrix fragments for mma.m16n8k16"), so that a lane loads its part of 16 slots directly into
// registers, 8 bytes at a time. Keys are D / 16 such factors per 8 slots, values one per 8 elements. ORCA_HEAD_DIM is
// D, a multiple of 16. Loops over registers are unrolled: an array with an index that is known only at run time would
// be in local memory.
#include "attention.cuh"

constexpr int kSteps = kDim / 16;              // products along D for a score
constexpr int kAcross = kDim / 8;              // products across D for an output
constexpr int kFragments = kBlock * kDim / 4;  // fragments of a head's block
constexpr int kWarps = 4;
constexpr int kWarpRows = 16;
constexpr int kStoreThreads = 256;
constexpr float kLog2e = 1.442695041f;

// A lane's part of a second factor.
struct alignas(8) Fragment {
  unsigned word[2];
};

// c [16, 8] += a [16, 16] b [16, 8] by a warp.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const Fragment &b) {
#ifdef ORCA_EMULATED
  emulated_multiply(c, a, b.word, [](uint16_t bits) { return widen(Element{bits}); });
#elif ORCA_ELEMENT == 160
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.word[0]), "r"(b.word[1]));
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.word[0]), "r"(b.word[1]));
#endif
}

// Index of element (k, n) of a second factor [16, 8] among its 128 elements.
__device__ inline Index place_in_factor(Index k, Index n) {
  const Index lane = n * 4 + k % 8 / 2;
  return (lane * 2 + k / 8) * 2 + k % 2;
}

// Reductions over the four lanes that hold parts of the same row.
__device__ inline float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

extern "C" __global__ void orca_attention(const Element *query, const Fragment *key_pool, const Fragment *value_pool,
                                          const Index *starts, const Index *contexts, const Index *block_table,
                                          const int *tiles, Element *output, float *parts, Index num_heads,
                                          Index num_kv_heads, Index table_width, Index query_stride, Index window,
                                          Index split_size, Index most_splits, float scale) {
  __shared__ float merged[kWarpRows * (kDim + 2)];  // a row's output, top and total
  const int request = tiles[2 * blockIdx.x], warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int group = lane / 4, member = lane % 4;  // this lane has rows `group` and `group + 8`, columns from 2 `member`
  const int heads = static_cast<int>(num_heads) / static_cast<int>(num_kv_heads), kv_head = blockIdx.y;
  const Index start = starts[request];
  const int context = static_cast<int>(contexts[request]), reach = static_cast<int>(window);
  const Index *table = block_table + request * table_width;
  int first = tiles[2 * blockIdx.x + 1], left = static_cast<int>(starts[request + 1] - start) * heads - first;
  const bool together = left <= kWarpRows;  // all warps compute the same rows
  if (!together) {
    first += warp * kWarpRows;
    left -= warp * kWarpRows;
  }
  if (left <= 0) return;  // a warp without rows: `first` would be beyond the request's last row
  const int num_rows = left < kWarpRows ? left : kWarpRows;

  unsigned queries[kSteps][4] = {};
  int position[2] = {-1, -1};  // rows that do not exist attend to nothing
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + group + 8 * half;
    if (group + 8 * half >= num_rows) continue;
    position[half] = context + row / heads;
    const Element *from = query + (start + row / heads) * query_stride + (kv_head * heads + row % heads) * kDim;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Element *low = from + step * 16 + member * 2, *high = low + 8;
      queries[step][half] = pair(low[0], low[1]);
      queries[step][half + 2] = pair(high[0], high[1]);
    }
  }

  const int last_position = context + (first + num_rows - 1) / heads;
  const bool increment = starts[request + 1] - start == 1;  // a prompt has enough thread blocks without splits
  const Splits splits =
      splits_of(context + first / heads, last_position, reach, increment ? most_splits : 1, split_size);
  if (blockIdx.z >= splits.count) return;
  const int begin = splits.begin + blockIdx.z * splits.size + (together ? warp * kBlock : 0);
  int end = splits.begin + (blockIdx.z + 1) * splits.size;
  if (end > splits.end) end = splits.end;
  float accumulated[kAcross][4] = {}, top[2] = {kLowest, kLowest}, total[2] = {};
  const int stride = together ? kWarps * kBlock : kBlock;
  Index next = begin < end ? table[begin / kBlock] : 0;
  for (int slot = begin; slot < end; slot += stride) {
    const Index block = (next * num_kv_heads + kv_head) * kFragments + lane;
    if (slot + stride < end) next = table[(slot + stride) / kBlock];  // early, to hide its latency
    const Fragment *keys = key_pool + block, *values = value_pool + block;
    float scores[2][4] = {}, most[2] = {top[0], top[1]};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) multiply(scores[half], queries[step], keys[(half * kSteps + step) * kWarp]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int distance = position[i / 2] - (slot + half * 8 + member * 2 + i % 2);
        const bool seen = distance >= 0 && (!reach || distance < reach);
        scores[half][i] = seen ? scores[half][i] * (scale * kLog2e) : kLowest;
        most[i / 2] = fmaxf(most[i / 2], scores[half][i]);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      most[row] = row_max(most[row]);
      const float shrink = exp2f(top[row] - most[row]);
      top[row] = most[row];
      total[row] *= shrink;
#pragma unroll
      for (int n = 0; n < kAcross; ++n) {
        accumulated[n][2 * row] *= shrink;
        accumulated[n][2 * row + 1] *= shrink;
      }
    }
    unsigned weights[4];  // softmax weights, in the layout of the first factor of the product with the values
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float weight[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float score = scores[half][2 * row + i];
          weight[i] = score == kLowest ? 0 : exp2f(score - top[row]);
          total[row] += weight[i];  // of this lane's columns
        }
        weights[2 * half + row] = narrow_pair(weight[0], weight[1]);
      }
    }
    unsigned filled[2];  // mask of slots with a token: other slots may contain NaN, and 0 x NaN is NaN
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int here = slot + half * 8 + member * 2;
      filled[half] = (here <= last_position ? 0xffffu : 0) | (here + 1 <= last_position ? 0xffff0000u : 0);
    }
#pragma unroll
    for (int n = 0; n < kAcross; ++n) {
      const Fragment own = values[n * kWarp];
      multiply(accumulated[n], weights, {own.word[0] & filled[0], own.word[1] & filled[1]});
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) total[row] = row_sum(total[row]);

  if (together) {  // merge from the last warp to the first
    for (int turn = kWarps - 1; turn >= 0; --turn) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (warp != turn) break;
        float *mine = merged + (group + 8 * row) * (kDim + 2);
        float keep = 1, add = 0;
        if (turn < kWarps - 1) {
          const float most = fmaxf(top[row], mine[kDim]);
          keep = exp2f(top[row] - most);
          add = exp2f(mine[kDim] - most);
          top[row] = most;
          total[row] = total[row] * keep + mine[kDim + 1] * add;
        }
#pragma unroll
        for (int n = 0; n < kAcross; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float &part = mine[n * 8 + member * 2 + i], &own = accumulated[n][2 * row + i];
            if (add != 0) own = own * keep + part * add;
            part = own;
          }
        }
        __syncwarp();  // until all four lanes of a row have read its top and total
        mine[kDim] = top[row];
        mine[kDim + 1] = total[row];
      }
      __syncthreads();
    }
    if (warp) return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + group + 8 * half;
    if (group + 8 * half >= num_rows) continue;
    const Index place = (start + row / heads) * num_heads + kv_head * heads + row % heads;
    const float share = 1 / total[half];
    float *mine = parts + ((request * num_heads + kv_head * heads + row % heads) * most_splits + blockIdx.z) * (kDim + 2);
#pragma unroll
    for (int n = 0; n < kAcross; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = n * 8 + member * 2 + i;
        const float own = accumulated[n][2 * half + i];
        if (splits.count == 1) {
          output[place * kDim + d] = narrow(own * share);
        } else {
          mine[d] = own;
        }
      }
    }
    if (splits.count > 1 && member == 0) {
      mine[kDim] = top[half] / kLog2e;  // orca_merge uses base e
      mine[kDim + 1] = total[half];
    }
  }
}

// Writes keys and values [S, G, D], with row strides, to their slots of the pools.
extern "C" __global__ void orca_store(const Element *key, const Element *value, Element *key_pool, Element *value_pool,
                                      const Index *slots, Index heads, Index key_stride, Index value_stride) {
  const Index block = slots[blockIdx.x] / kBlock, slot = slots[blockIdx.x] % kBlock;
  for (Index i = threadIdx.x; i < heads * kDim; i += kStoreThreads) {
    const Index begin = (block * heads + i / kDim) * kBlock * kDim, d = i % kDim;
    key_pool[begin + (slot / 8 * kSteps + d / 16) * 128 + place_in_factor(d % 16, slot % 8)] =
        key[blockIdx.x * key_stride + i];
    value_pool[begin + d / 8 * 128 + place_in_factor(slot, d % 8)] = value[blockIdx.x * value_stride + i];
  }
}
