// Lists the work of a batch's attention on the device, where a decode graph's context lengths are. One thread block.
#include "element.cuh"
#include "work.cuh"

constexpr int kThreads = 256;
constexpr int kWhole = 64;  // slots that a thread block of attention reads at a time

// Replaces each thread's value by the sum of those before it; returns the sum of all.
__device__ inline int sum_before(int &value) {
  __shared__ int sums[2][kThreads];
  const int own = value, thread = threadIdx.x;
  int from = 0;
  __syncthreads();
  sums[0][thread] = own;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2, from ^= 1) {
    sums[from ^ 1][thread] = sums[from][thread] + (thread >= step ? sums[from][thread - step] : 0);
    __syncthreads();
  }
  value = sums[from][thread] - own;
  return sums[from][kThreads - 1];
}

// Divides the context of each of the `num_tiles` tiles (request, first row) of up to `tile_rows` rows, `heads` per
// token. The number of splits depends on the request's own length and tiles only, so that the rest of the batch does
// not change the order of additions: `least_slots` per split or more, and at most `most_splits`, or
// `most_works` / tiles of the request. Python has the same rule (work.py).
extern "C" __global__ void orca_plan(const int *tiles, const Index *starts, const Index *contexts, Work *works,
                                     Merge *merges, Counts *counts, int num_tiles, int tile_rows, int heads, int window,
                                     int least_slots, int most_splits, int most_works) {
  int num_works = 0, num_merges = 0, num_parts = 0;
  for (int batch = 0; batch < num_tiles; batch += kThreads) {
    const int tile = batch + threadIdx.x;
    int count = 0, size = 0, begin = 0, end = 0, request = 0, first = 0, rows = 0;
    if (tile < num_tiles) {
      request = tiles[2 * tile];
      first = tiles[2 * tile + 1];
      const int all = static_cast<int>(starts[request + 1] - starts[request]) * heads;
      const int context = static_cast<int>(contexts[request]);
      rows = all - first < tile_rows ? all - first : tile_rows;
      const int position = context + first / heads;
      begin = window && position >= window ? (position - window + 1) / kWhole * kWhole : 0;
      end = context + (first + rows - 1) / heads + 1;
      const int fair = most_works / ((all + tile_rows - 1) / tile_rows);
      const int limit = fair < most_splits ? fair : most_splits;
      const int length = end - begin, needed = (length + least_slots - 1) / least_slots;
      const int most = limit < 1 ? 1 : limit, wanted = needed < most ? needed : most;
      size = ((length + wanted - 1) / wanted + kWhole - 1) / kWhole * kWhole;
      count = (length + size - 1) / size;
    }
    int work = count, merge = count > 1, part = count > 1 ? count * rows : 0;
    const int more_works = sum_before(work), more_merges = sum_before(merge), more_parts = sum_before(part);
    part += num_parts;
    for (int split = 0; split < count; ++split) {
      const int from = begin + split * size, to = split + 1 < count ? from + size : end;
      works[num_works + work + split] = {request, first, from, to, count > 1 ? part + split * rows : -1, {}};
    }
    if (count > 1) merges[num_merges + merge] = {request, first, rows, count, part, {}};
    num_works += more_works;
    num_merges += more_merges;
    num_parts += more_parts;
  }
  if (threadIdx.x == 0) *counts = {num_works, num_merges};
}
