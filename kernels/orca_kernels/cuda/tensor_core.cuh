// The attention of a warp's 16 rows over blocks of keys and values in shared memory, by tensor cores.
//
// A head's block of the pools has the order in which the lanes of a warp hold the second factor of a 16 x 16 by 16 x 8
// product (PTX ISA, "Matrix fragments for mma.m16n8k16"): 16 bytes per lane are its parts of two factors. Of keys these
// are 16 elements of D by slots 0 to 7 and 8 to 15, of values 16 slots by two times 8 elements of D. So a lane copies
// and reads 16 bytes at a time, without bank conflicts. Loops over registers are unrolled: an array with an index that
// is known only at run time would be in local memory.
#pragma once

#include "attention.cuh"
#include "copies.cuh"

constexpr int kSteps = kDim / 16;  // products along D for a score, and pairs of products across D for an output
constexpr int kHeadWords = kSteps * kWarp;  // words of 16 bytes of a head's block of keys, or values

// A lane's part of a second factor.
struct Fragment {
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

// Index of element (k, n) of factor `which` of a pair of second factors [16, 8].
__device__ inline int place_in_pair(int pair, int which, int k, int n) {
  const int lane = n * 4 + k % 8 / 2;
  return ((pair * kWarp + lane) * 4 + which * 2 + k / 8) * 2 + k % 2;
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

// What a lane knows of its two rows, `group` and `group + 8` of the warp's.
struct Rows {
  unsigned queries[kSteps][4];
  int position[2];  // -1 for rows that do not exist: they attend to nothing
  int last;         // largest position of the warp's rows
  float accumulated[2 * kSteps][4], top[2], total[2];
};

// Adds the products of the queries and `kCount` pairs of factors from `first` of a block of keys, at this lane.
template <int kCount>
__device__ __forceinline__ void add_scores(float (&scores)[2][4], const Rows &rows, const Words *keys, int first) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first + i >= kSteps) break;
    const Words pair = keys[i * kWarp];
    multiply(scores[0], rows.queries[first + i], {pair.word[0], pair.word[1]});
    multiply(scores[1], rows.queries[first + i], {pair.word[2], pair.word[3]});
  }
}

// Turns the scores of `kOwn` blocks from `slot` on into softmax weights, in the layout of a first factor.
template <int kOwn>
__device__ __forceinline__ void softmax(unsigned (&weights)[kOwn][4], float (&scores)[kOwn][2][4], Rows &rows, int slot,
                                        int window, float scale) {
  const int column = slot + threadIdx.x % 4 * 2;
  float most[2] = {rows.top[0], rows.top[1]};
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int distance = rows.position[i / 2] - (column + own * kBlock + half * 8 + i % 2);
        const bool seen = distance >= 0 && (!window || distance < window);
        float &score = scores[own][half][i];
        score = seen ? score * scale : kLowest;
        most[i / 2] = fmaxf(most[i / 2], score);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    most[row] = row_max(most[row]);
    const float shrink = exp2f(rows.top[row] - most[row]);
    rows.top[row] = most[row];
    rows.total[row] *= shrink;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
      rows.accumulated[n][2 * row] *= shrink;
      rows.accumulated[n][2 * row + 1] *= shrink;
    }
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float weight[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float score = scores[own][half][2 * row + i];
          weight[i] = score == kLowest ? 0 : exp2f(score - rows.top[row]);
          rows.total[row] += weight[i];  // of this lane's columns
        }
        weights[own][2 * half + row] = narrow_pair(weight[0], weight[1]);
      }
    }
  }
}

// Adds the products of the weights and `kCount` pairs of factors from `first` of a block of values from `slot` on.
template <int kCount>
__device__ __forceinline__ void add_values(Rows &rows, const unsigned (&weights)[4], const Words *values, int first,
                                           int slot) {
  unsigned filled[2];  // mask of slots with a token: other slots may contain NaN, and 0 x NaN is NaN
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int here = slot + half * 8 + threadIdx.x % 4 * 2;
    filled[half] = (here <= rows.last ? 0xffffu : 0) | (here + 1 <= rows.last ? 0xffff0000u : 0);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first + i >= kSteps) break;
    const Words pair = values[i * kWarp];
    multiply(rows.accumulated[2 * (first + i)], weights, {pair.word[0] & filled[0], pair.word[1] & filled[1]});
    multiply(rows.accumulated[2 * (first + i) + 1], weights, {pair.word[2] & filled[0], pair.word[3] & filled[1]});
  }
}
