// Operations on single rows of an iteration, with one or more thread blocks per row. A thread reads and writes 16 bytes
// at a time, or one element where a row does not begin or end at a multiple of that.
#include "element.cuh"

constexpr int kThreads = 256;
constexpr int kWide = 16 / sizeof(Element);  // elements of 16 bytes

// `kCount` elements, read and written at once.
template <typename Type, int kCount>
struct alignas(sizeof(Type) * kCount < 16 ? sizeof(Type) * kCount : 16) Group {
  Type item[kCount];
};

template <int kCount, typename Type>
__device__ inline Group<Type, kCount> read(const Type *from) {
  return *reinterpret_cast<const Group<Type, kCount> *>(from);
}

template <int kCount>
__device__ inline void write(Element *to, const Group<Element, kCount> &group) {
  *reinterpret_cast<Group<Element, kCount> *>(to) = group;
}

// Returns whether an address is a multiple of 16 bytes.
__device__ inline bool whole(const void *address) { return reinterpret_cast<unsigned long long>(address) % 16 == 0; }

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

// Returns the sum of `term` of every element of a row to every thread.
template <int kCount, typename Term>
__device__ inline float sum_of(const Element *x, int size, Term term) {
  float part = 0;
  for (int i = threadIdx.x * kCount; i < size; i += kThreads * kCount) {
    const auto group = read<kCount>(x + i);
#pragma unroll
    for (int n = 0; n < kCount; ++n) part += term(widen(group.item[n]));
  }
  return block_sum(part);
}

template <int kCount>
__device__ inline void layer_norm(const Element *x, const Element *weight, const Element *bias, Element *y, int size,
                                  float epsilon) {
  const float mean = sum_of<kCount>(x, size, [](float value) { return value; }) / size;
  const float squares = sum_of<kCount>(x, size, [=](float value) { return (value - mean) * (value - mean); });
  const float scale = rsqrtf(squares / size + epsilon);
  for (int i = threadIdx.x * kCount; i < size; i += kThreads * kCount) {
    auto group = read<kCount>(x + i);
    const auto factors = read<kCount>(weight + i), shifts = read<kCount>(bias + i);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float normal = (widen(group.item[n]) - mean) * scale;
      group.item[n] = narrow(normal * widen(factors.item[n]) + widen(shifts.item[n]));
    }
    write(y + i, group);
  }
}

extern "C" __global__ void orca_layer_norm(const Element *x, const Element *weight, const Element *bias, Element *y,
                                           int size, float epsilon) {
  x += blockIdx.x * static_cast<Index>(size);
  y += blockIdx.x * static_cast<Index>(size);
  if (size % kWide == 0 && whole(x) && whole(weight) && whole(bias) && whole(y)) {
    layer_norm<kWide>(x, weight, bias, y, size, epsilon);
  } else {
    layer_norm<1>(x, weight, bias, y, size, epsilon);
  }
}

// Like transformers: rounds the normalised value to the element type before multiplying by the weight.
template <int kCount>
__device__ inline void rms_norm(const Element *x, const Element *weight, Element *y, int size, float epsilon) {
  const float squares = sum_of<kCount>(x, size, [](float value) { return value * value; });
  const float scale = rsqrtf(squares / size + epsilon);
  for (int i = threadIdx.x * kCount; i < size; i += kThreads * kCount) {
    auto group = read<kCount>(x + i);
    const auto factors = read<kCount>(weight + i);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      group.item[n] = narrow(widen(narrow(widen(group.item[n]) * scale)) * widen(factors.item[n]));
    }
    write(y + i, group);
  }
}

extern "C" __global__ void orca_rms_norm(const Element *x, const Element *weight, Element *y, int size, float epsilon) {
  x += blockIdx.x * static_cast<Index>(size);
  y += blockIdx.x * static_cast<Index>(size);
  if (size % kWide == 0 && whole(x) && whole(weight) && whole(y)) {
    rms_norm<kWide>(x, weight, y, size, epsilon);
  } else {
    rms_norm<1>(x, weight, y, size, epsilon);
  }
}

template <int kCount>
__device__ inline void silu_and_multiply(const Element *gate, const Element *up, Element *y, int size) {
  const int first = blockIdx.y * kThreads + threadIdx.x;
  for (int i = first * kCount; i < size; i += gridDim.y * kThreads * kCount) {
    auto gates = read<kCount>(gate + i);
    const auto ups = read<kCount>(up + i);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float value = widen(gates.item[n]);
      gates.item[n] = narrow(value / (1.0f + expf(-value)) * widen(ups.item[n]));
    }
    write(y + i, gates);
  }
}

// y = silu(gate) x up; a row of gate_up [S, 2 I] has the gates, then the ups.
extern "C" __global__ void orca_silu_and_multiply(const Element *gate_up, Element *y, int size) {
  const Element *gate = gate_up + blockIdx.x * 2 * static_cast<Index>(size), *up = gate + size;
  y += blockIdx.x * static_cast<Index>(size);
  if (size % kWide == 0 && whole(gate) && whole(y)) {
    silu_and_multiply<kWide>(gate, up, y, size);
  } else {
    silu_and_multiply<1>(gate, up, y, size);
  }
}

template <int kCount>
__device__ inline void rotate(Element *x, const float *cosine, const float *sine, int heads, int half) {
  const int groups = half / kCount;
  for (int i = threadIdx.x; i < heads * groups; i += kThreads) {
    const int d = i % groups * kCount;
    Element *low = x + i / groups * 2 * half + d, *high = low + half;
    auto lows = read<kCount>(low), highs = read<kCount>(high);
    const auto low_cosines = read<kCount>(cosine + d), high_cosines = read<kCount>(cosine + half + d);
    const auto low_sines = read<kCount>(sine + d), high_sines = read<kCount>(sine + half + d);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float a = widen(lows.item[n]), b = widen(highs.item[n]);
      lows.item[n] = narrow(a * low_cosines.item[n] - b * low_sines.item[n]);
      highs.item[n] = narrow(b * high_cosines.item[n] + a * high_sines.item[n]);
    }
    write(low, lows);
    write(high, highs);
  }
}

// Rotates the halves of every head in place; a block per row of `stride` elements, cosine and sine [S, D].
extern "C" __global__ void orca_rotate(Element *x, const float *cosine, const float *sine, int heads, int dim,
                                       int stride) {
  x += blockIdx.x * static_cast<Index>(stride);
  cosine += blockIdx.x * static_cast<Index>(dim);
  sine += blockIdx.x * static_cast<Index>(dim);
  if (dim / 2 % kWide == 0 && whole(x) && whole(cosine) && whole(sine)) {
    rotate<kWide>(x, cosine, sine, heads, dim / 2);
  } else {
    rotate<1>(x, cosine, sine, heads, dim / 2);
  }
}

// Writes keys and values [S, G, D], with row strides, to their slots of the pools [B, G, D, 16] and [B, G, 16, D].
extern "C" __global__ void orca_store(const Element *key, const Element *value, Element *key_pool, Element *value_pool,
                                      const Index *slots, int heads, int dim, int key_stride, int value_stride) {
  const Index slot = slots[blockIdx.x], block = slot / 16;
  const int place = static_cast<int>(slot % 16);
  key += blockIdx.x * static_cast<Index>(key_stride);
  value += blockIdx.x * static_cast<Index>(value_stride);
  for (int i = threadIdx.x; i < heads * dim; i += kThreads) {
    const Index begin = (block * heads + i / dim) * 16 * dim;
    const int d = i % dim;
    key_pool[begin + d * 16 + place] = key[i];
    value_pool[begin + place * dim + d] = value[i];
  }
}
