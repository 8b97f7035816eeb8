// Operations on single rows of an iteration, with one or more thread blocks per row. A thread reads and writes 16 bytes
// at a time, or one element where a row does not begin or end at a multiple of that.
#include "groups.cuh"

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // groups of a row that a thread keeps in registers: a row of 8,192 elements of 16 bits fits

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

// A row of which each thread has the groups that it read, in registers; those of a longer row it reads again.
template <int kCount>
struct Row {
  using Elements = Group<Element, kCount>;
  Element *x;
  int size;
  Elements held[kHeld];

  // Reads the row x. With an `addend`, the row is x + (addend + bias), which replaces x; the bias is optional.
  __device__ inline Row(Element *x, const Element *addend, const Element *bias, int size) : x(x), size(size) {
    each_held([=](int i, Elements &group) { group = read<kCount>(x + i); });
    if (!addend) return;
    // All groups are read before the first is written, so that their reads overlap.
    each_held([=](int i, Elements &group) { add(group, addend, bias, i); });
    each_held([=](int i, const Elements &group) { write(x + i, group); });
    each_other([=](int i, Elements &group) {
      add(group, addend, bias, i);
      write(x + i, group);
    });
  }

  __device__ static inline void add(Elements &group, const Element *addend, const Element *bias, int i) {
    const Elements addends = read<kCount>(addend + i), biases = bias ? read<kCount>(bias + i) : Elements{};
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      group.item[n] = narrow(widen(group.item[n]) + (widen(addends.item[n]) + widen(biases.item[n])));
    }
  }

  // Call `work` with the index of a group's first element, and with the group: for those in registers, and for others.
  template <typename Work>
  __device__ inline void each_held(Work work) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = (n * kThreads + threadIdx.x) * kCount;
      if (i < size) work(i, held[n]);
    }
  }
  template <typename Work>
  __device__ inline void each_other(Work work) {
#pragma unroll 1
    for (int i = (kHeld * kThreads + threadIdx.x) * kCount; i < size; i += kThreads * kCount) {
      Elements group = read<kCount>(x + i);
      work(i, group);
    }
  }
  template <typename Work>
  __device__ inline void each(Work work) {
    each_held(work);
    each_other(work);
  }

  // Returns the mean of `term` of the elements to every thread.
  template <typename Term>
  __device__ inline float mean(Term term) {
    float part = 0;
    each([&](int, const Elements &group) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) part += term(widen(group.item[n]));
    });
    return block_sum(part) / size;
  }

  // Writes to y `change` of each element, its weight, and its shift (0 without shifts).
  template <typename Change>
  __device__ inline void put(Element *y, const Element *weight, const Element *shift, Change change) {
    each([&](int i, const Elements &group) {
      const Elements weights = read<kCount>(weight + i), shifts = shift ? read<kCount>(shift + i) : Elements{};
      Elements changed;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        changed.item[n] = narrow(change(widen(group.item[n]), widen(weights.item[n]), widen(shifts.item[n])));
      }
      write(y + i, changed);
    });
  }
};

// Calls `norm` with this thread block's row, and its place in y. `whole_weights`: whether those begin at multiples of 16
// bytes.
template <typename Norm>
__device__ inline void on_row(Element *x, const Element *addend, const Element *bias, Element *y, int size,
                              bool whole_weights, Norm norm) {
  const Index first = blockIdx.x * static_cast<Index>(size);
  x += first;
  y += first;
  if (addend) addend += first;
  if (whole_weights && size % kWide == 0 && whole(x) && whole(addend) && whole(bias) && whole(y)) {
    Row<kWide> row(x, addend, bias, size);
    norm(row, y);
  } else {
    Row<1> row(x, addend, bias, size);
    norm(row, y);
  }
}

struct LayerNorm {
  const Element *weight, *bias;
  float epsilon;

  template <int kCount>
  __device__ inline void operator()(Row<kCount> &row, Element *y) const {
    const float mean = row.mean([](float value) { return value; });
    const float scale = rsqrtf(row.mean([=](float value) { return (value - mean) * (value - mean); }) + epsilon);
    row.put(y, weight, bias, [=](float value, float factor, float shift) {
      return (value - mean) * scale * factor + shift;
    });
  }
};

// Like transformers: rounds the normalised value to the element type before multiplying by the weight.
struct RmsNorm {
  const Element *weight;
  float epsilon;

  template <int kCount>
  __device__ inline void operator()(Row<kCount> &row, Element *y) const {
    const float scale = rsqrtf(row.mean([](float value) { return value * value; }) + epsilon);
    row.put(y, weight, nullptr, [=](float value, float factor, float) { return widen(narrow(value * scale)) * factor; });
  }
};

// The weight is a difference from 1.
struct RmsNormPlusOne {
  const Element *weight;
  float epsilon;

  template <int kCount>
  __device__ inline void operator()(Row<kCount> &row, Element *y) const {
    const float scale = rsqrtf(row.mean([](float value) { return value * value; }) + epsilon);
    row.put(y, weight, nullptr, [=](float value, float factor, float) { return value * scale * (1 + factor); });
  }
};

// The norms y of rows x [S, H] or, with an `addend` [S, H], of x + (addend + `addend_bias` [H]), which replaces x: so a
// residual is added without a launch and a pass over memory of its own. Both addends may be null.
extern "C" __global__ void orca_layer_norm(Element *x, const Element *addend, const Element *addend_bias,
                                           const Element *weight, const Element *bias, Element *y, int size,
                                           float epsilon) {
  on_row(x, addend, addend_bias, y, size, whole(weight) && whole(bias), LayerNorm{weight, bias, epsilon});
}

extern "C" __global__ void orca_rms_norm(Element *x, const Element *addend, const Element *addend_bias,
                                         const Element *weight, Element *y, int size, float epsilon) {
  on_row(x, addend, addend_bias, y, size, whole(weight), RmsNorm{weight, epsilon});
}

extern "C" __global__ void orca_rms_norm_plus_one(Element *x, const Element *addend, const Element *addend_bias,
                                                  const Element *weight, Element *y, int size, float epsilon) {
  on_row(x, addend, addend_bias, y, size, whole(weight), RmsNormPlusOne{weight, epsilon});
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

// Rotates a row's heads. A thread has the same pair of groups of every head: `groups` pairs per head.
template <int kCount>
__device__ inline void rotate(Element *x, const float *cosine, const float *sine, int heads, int half) {
  const int groups = half / kCount, at_once = kThreads > groups ? kThreads / groups : 1;
  const int first = threadIdx.x / groups;
  if (first >= at_once) return;
  for (int group = threadIdx.x - first * groups; group < groups; group += kThreads) {
    const Turn<kCount> turn(cosine + group * kCount, sine + group * kCount, half);
    for (int head = first; head < heads; head += at_once) {
      Element *low = x + head * 2 * half + group * kCount, *high = low + half;
      auto lows = read<kCount>(low), highs = read<kCount>(high);
      turn.apply(lows, highs);
      write(low, lows);
      write(high, highs);
    }
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
