// Merges the partial results of attention over a split context.
#include "attention.cuh"

constexpr int kPart = (kDim + kWarp - 1) / kWarp;  // elements of an output row per lane

// Merges the parts [R, N, splits, D + 2] of increments, weighted by their softmax sums; one warp per request and head.
extern "C" __global__ void orca_merge(const float *parts, const Index *starts, const Index *contexts, Element *output,
                                      Index num_heads, Index window, Index split_size, Index most_splits) {
  const Index start = starts[blockIdx.x], context = contexts[blockIdx.x];
  const Index num_splits = splits_of(context, context, window, most_splits, split_size).count;
  if (starts[blockIdx.x + 1] - start != 1 || num_splits == 1) return;  // the output is complete
  const float *own = parts + (blockIdx.x * num_heads + blockIdx.y) * most_splits * (kDim + 2);
  float top = kLowest, total = 0, accumulated[kPart] = {};
  for (Index split = 0; split < num_splits; ++split) top = fmaxf(top, own[split * (kDim + 2) + kDim]);
  for (Index split = 0; split < num_splits; ++split) {
    const float *part = own + split * (kDim + 2);
    const float weight = expf(part[kDim] - top);
    total += weight * part[kDim + 1];
    for (int d = threadIdx.x; d < kDim; d += kWarp) accumulated[d / kWarp] += weight * part[d];
  }
  output += (start * num_heads + blockIdx.y) * kDim;
  for (int d = threadIdx.x; d < kDim; d += kWarp) output[d] = narrow(accumulated[d / kWarp] / total);
}
