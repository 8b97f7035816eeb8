// Operations on single rows of an iteration, with a thread block per row or a thread per element.
#include "element.cuh"

constexpr int kThreads = 256;

// Returns the sum over the thread block to every thread.
__device__ inline float block_sum(float value) {
  __shared__ float parts[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += parts[warp];
  return total;
}

extern "C" __global__ void orca_layer_norm(const Element *x, const Element *weight, const Element *bias, Element *y,
                                           Index size, float epsilon) {
  x += blockIdx.x * size;
  y += blockIdx.x * size;
  float part = 0;
  for (Index i = threadIdx.x; i < size; i += kThreads) part += widen(x[i]);
  const float mean = block_sum(part) / size;
  part = 0;
  for (Index i = threadIdx.x; i < size; i += kThreads) part += (widen(x[i]) - mean) * (widen(x[i]) - mean);
  const float scale = rsqrtf(block_sum(part) / size + epsilon);
  for (Index i = threadIdx.x; i < size; i += kThreads) {
    y[i] = narrow((widen(x[i]) - mean) * scale * widen(weight[i]) + widen(bias[i]));
  }
}

// Like transformers: rounds the normalised value to the element type before multiplying by the weight.
extern "C" __global__ void orca_rms_norm(const Element *x, const Element *weight, Element *y, Index size,
                                         float epsilon) {
  x += blockIdx.x * size;
  y += blockIdx.x * size;
  float part = 0;
  for (Index i = threadIdx.x; i < size; i += kThreads) part += widen(x[i]) * widen(x[i]);
  const float scale = rsqrtf(block_sum(part) / size + epsilon);
  for (Index i = threadIdx.x; i < size; i += kThreads) {
    y[i] = narrow(widen(narrow(widen(x[i]) * scale)) * widen(weight[i]));
  }
}

// y = silu(gate) x up; a row of gate_up [S, 2 I] has the gates, then the ups.
extern "C" __global__ void orca_silu_and_multiply(const Element *gate_up, Element *y, Index size) {
  const Index i = blockIdx.y * static_cast<Index>(kThreads) + threadIdx.x;
  if (i >= size) return;
  const Element *gate = gate_up + blockIdx.x * 2 * size;
  const float value = widen(gate[i]);
  y[blockIdx.x * size + i] = narrow(value / (1.0f + expf(-value)) * widen(gate[size + i]));
}

// Rotates the halves of every head in place; a block per row of `stride` elements, cosine and sine [S, D].
extern "C" __global__ void orca_rotate(Element *x, const float *cosine, const float *sine, Index heads, Index dim,
                                       Index stride) {
  x += blockIdx.x * stride;
  cosine += blockIdx.x * dim;
  sine += blockIdx.x * dim;
  const Index half = dim / 2;
  for (Index i = threadIdx.x; i < heads * half; i += kThreads) {
    const Index d = i % half;
    Element *low = x + i / half * dim + d, *high = low + half;
    const float a = widen(*low), b = widen(*high);
    *low = narrow(a * cosine[d] - b * sine[d]);
    *high = narrow(b * cosine[half + d] + a * sine[half + d]);
  }
}

// Writes keys and values [S, G, D], with row strides, to their slots of the pools [B, G, D, 16] and [B, G, 16, D].
extern "C" __global__ void orca_store(const Element *key, const Element *value, Element *key_pool, Element *value_pool,
                                      const Index *slots, Index heads, Index dim, Index key_stride,
                                      Index value_stride) {
  const Index block = slots[blockIdx.x] / 16, place = slots[blockIdx.x] % 16;
  for (Index i = threadIdx.x; i < heads * dim; i += kThreads) {
    const Index begin = (block * heads + i / dim) * 16 * dim, d = i % dim;
    key_pool[begin + d * 16 + place] = key[blockIdx.x * key_stride + i];
    value_pool[begin + place * dim + d] = value[blockIdx.x * value_stride + i];
  }
}
