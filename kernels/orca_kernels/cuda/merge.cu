// Merges the partial results of attention over split contexts, weighted by their softmax sums: a thread block per row
// and key/value head, whose warps have every fourth split.
#include "attention.cuh"

constexpr int kWarps = 4;
constexpr int kPart = (kDim + kWarp - 1) / kWarp;  // elements of an output row per lane

extern "C" __global__ void orca_merge(const float *parts, const Index *starts, const Merge *merges,
                                      const Counts *counts, Element *output, int heads, int num_kv_heads) {
  __shared__ float merged[kWarps][kPart * kWarp], tops[kWarps], totals[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, kv_head = blockIdx.y;
  const int num_merges = counts->merges;
  for (int index = blockIdx.x; index < num_merges; index += gridDim.x) {
    const Merge merge = merges[index];
    for (int row = blockIdx.z; row < merge.rows; row += gridDim.z) {
      const float *own = parts + (static_cast<Index>(merge.part + row) * num_kv_heads + kv_head) * (kDim + 2);
      const Index next = static_cast<Index>(merge.rows) * num_kv_heads * (kDim + 2);
      float top = kLowest, total = 0, accumulated[kPart] = {};
      for (int split = warp; split < merge.splits; split += kWarps) top = fmaxf(top, own[split * next + kDim]);
#pragma unroll 4
      for (int split = warp; split < merge.splits; split += kWarps) {
        const float *part = own + split * next;
        const float weight = exp2f(part[kDim] - top);
        total += weight * part[kDim + 1];
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
          const int d = i * kWarp + lane;
          if (d < kDim) accumulated[i] += weight * part[d];
        }
      }
      __syncthreads();  // the row before has been read
#pragma unroll
      for (int i = 0; i < kPart; ++i) merged[warp][i * kWarp + lane] = accumulated[i];
      if (lane == 0) {
        tops[warp] = top;
        totals[warp] = total;
      }
      __syncthreads();
      float most = kLowest, sum = 0, weights[kWarps];
#pragma unroll
      for (int i = 0; i < kWarps; ++i) most = fmaxf(most, tops[i]);
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        weights[i] = exp2f(tops[i] - most);
        sum += weights[i] * totals[i];
      }
      const int place = merge.first + row;
      const Index token = starts[merge.request] + place / heads;
      Element *to = output + ((token * num_kv_heads + kv_head) * heads + place % heads) * kDim;
      for (int d = threadIdx.x; d < kDim; d += kWarps * kWarp) {
        float value = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) value += weights[i] * merged[i][d];
        to[d] = narrow(value / sum);
      }
    }
  }
}
