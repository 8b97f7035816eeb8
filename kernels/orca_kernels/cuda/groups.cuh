// Groups of adjacent elements that a thread reads and writes at once, 16 bytes at a time, and their rotation.
#pragma once

#include "element.cuh"

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

// Cosines and sines of a group of the low half of a head and of the same group of the high half.
template <int kCount>
struct Turn {
  Group<float, kCount> cosines[2], sines[2];

  __device__ inline Turn(const float *cosine, const float *sine, int half)
      : cosines{read<kCount>(cosine), read<kCount>(cosine + half)},
        sines{read<kCount>(sine), read<kCount>(sine + half)} {}

  __device__ inline void apply(Group<Element, kCount> &lows, Group<Element, kCount> &highs) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float a = widen(lows.item[n]), b = widen(highs.item[n]);
      lows.item[n] = narrow(a * cosines[0].item[n] - b * sines[0].item[n]);
      highs.item[n] = narrow(b * cosines[1].item[n] + a * sines[1].item[n]);
    }
  }
};
