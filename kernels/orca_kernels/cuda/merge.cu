// Puts the parts of attention over a split context together; ORCA_HEAD_DIM is D.
#include "element.cuh"

constexpr int kDim = ORCA_HEAD_DIM;
constexpr int kPart = (kDim + kWarp - 1) / kWarp;  // elements of an output row that a lane keeps

// A warp per row: weighs the splits' parts [rows, splits, D + 2] against each other.
extern "C" __global__ void orca_merge(const float *parts, Element *output, Index num_splits) {
  const float *own = parts + blockIdx.x * num_splits * (kDim + 2);
  float top = kLowest, total = 0, accumulated[kPart] = {};
  for (Index split = 0; split < num_splits; ++split) top = fmaxf(top, own[split * (kDim + 2) + kDim]);
  for (Index split = 0; split < num_splits; ++split) {
    const float *part = own + split * (kDim + 2);
    const float weight = expf(part[kDim] - top);  // 0 for a split that saw nothing
    total += weight * part[kDim + 1];
    for (int d = threadIdx.x; d < kDim; d += kWarp) accumulated[d / kWarp] += weight * part[d];
  }
  for (int d = threadIdx.x; d < kDim; d += kWarp) output[blockIdx.x * kDim + d] = narrow(accumulated[d / kWarp] / total);
}
