// Attention of every request of an iteration in one launch for 16-bit elements, on tensor cores (for the work list see
// plan.cu, for float32 attention.cu). A thread block takes entries of the work list for one key/value head. Of a tile
// with at most 16 rows, such as most increments, each of the four warps computes every fourth block of the context, and
// their results are added at the end; of a larger tile each warp has 16 rows, and all warps read the same blocks.
//
// Keys and values come through a ring of kStages stages in shared memory: while one is multiplied, the others are
// copied. The warps of a small tile do not wait for each other, because each lane reads only its own copies.
// ORCA_HEAD_DIM is D, a multiple of 16.
#include "groups.cuh"
#include "tensor_core.cuh"

constexpr int kWarps = 4;
constexpr int kWarpRows = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kPieces = kDim > 128 ? 2 : 1;               // parts of a head's block that are copied one after another
constexpr int kPiece = (kSteps + kPieces - 1) / kPieces;  // words per lane of such a part
constexpr int kPieceWords = kPiece * kWarp;
constexpr int kStageWords = kWarps * kPieceWords;
constexpr int kRingWords = (48 << 10) / sizeof(Words);  // static shared memory of every device
constexpr int kStages = kRingWords / kStageWords < 4 ? kRingWords / kStageWords : 4;
constexpr int kResident = kDim > 128 ? 2 : 3;  // thread blocks per multiprocessor for which there are enough registers
static_assert(kStages >= 3, "one stage is multiplied while two are copied");

// The blocks of a context that a warp copies, each `stride` slots after the one before.
struct Blocks {
  const int *table;
  int slot, end;
  int block_words;         // of a block of the pools: all heads
  int next = 0, block = 0;  // ids of the next block, read early to hide its latency, and of the current one; -1: none

  __device__ inline void look_up() { next = slot < end ? table[slot / kBlock] : -1; }
  __device__ inline void advance(int stride) {
    block = next;
    slot += stride;
    look_up();
  }
};

// Copies part `piece` of a head's block, if there is one, to this warp's place in a stage.
__device__ inline void copy_piece(Words *to, const Words *pool, const Blocks &blocks, int piece) {
  if (blocks.block < 0) return;
  const Words *from = pool + static_cast<Index>(blocks.block) * blocks.block_words;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    const int word = piece * kPieceWords + i * kWarp;
    if (kSteps % kPiece == 0 || word < kHeadWords) copy_async(to + i * kWarp, from + word);
  }
}

__device__ inline int next_stage(int stage) { return stage + 1 == kStages ? 0 : stage + 1; }

// Computes a small tile: this warp's blocks are every fourth. A stage has a piece of the keys, or of the values, of a
// block per warp.
__device__ __forceinline__ void attend_together(Rows &rows, Words *ring, Blocks blocks, const Words *keys,
                                                const Words *values, int begin, int end, int window, float scale) {
  constexpr int kPhases = 2 * kPieces;  // stages per block: keys, then values
  const int warp = threadIdx.x / kWarp;
  ring += warp * kPieceWords + threadIdx.x % kWarp;
  int full = 0, free = 0;  // the next stage to read, and to copy to
  const auto copy = [&](int phase) {
    if (phase == 0) blocks.advance(kWarps * kBlock);
    copy_piece(ring + free * kStageWords, phase < kPieces ? keys : values, blocks, phase % kPieces);
    commit_copies();
    free = next_stage(free);
  };
  const auto next = [&](int phase) {
    await_copies<kStages - 2>();
    __syncwarp();
    copy((phase + kStages - 1) % kPhases);  // to the stage that was read last
    const Words *held = ring + full * kStageWords;
    full = next_stage(full);
    return held;
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copy(stage % kPhases);
  for (int slot = begin + warp * kBlock; slot < end; slot += kWarps * kBlock) {
    float scores[1][2][4] = {};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) add_scores<kPiece>(scores[0], rows, next(piece), piece * kPiece);
    unsigned weights[1][4];
    softmax(weights, scores, rows, slot, window, scale);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      add_values<kPiece>(rows, weights[0], next(kPieces + piece), piece * kPiece, slot);
    }
  }
}

// Computes 16 rows of a larger tile by each warp. A stage has the keys and the values of kOwn blocks: the first half of
// the warps copies the keys, the second half the values.
__device__ __forceinline__ void attend_apart(Rows &rows, Words *ring, Blocks blocks, const Words *pool, int begin,
                                             int end, int window, float scale) {
  constexpr int kOwn = kWarps / 2 / kPieces;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int full = 0, free = 0;
  const auto copy = [&] {
    blocks.advance(kOwn * kBlock);
    copy_piece(ring + free * kStageWords + warp * kPieceWords + lane, pool, blocks, warp % kPieces);
    commit_copies();
    free = next_stage(free);
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copy();
  for (int slot = begin; slot < end; slot += kOwn * kBlock) {
    await_copies<kStages - 2>();
    __syncthreads();
    copy();
    const Words *keys = ring + full * kStageWords + lane, *values = keys + kStageWords / 2;
    full = next_stage(full);
    if (slot > rows.last) continue;
    float scores[kOwn][2][4] = {};
#pragma unroll
    for (int own = 0; own < kOwn; ++own) add_scores<kSteps>(scores[own], rows, keys + own * kHeadWords, 0);
    unsigned weights[kOwn][4];
    softmax(weights, scores, rows, slot, window, scale);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      add_values<kSteps>(rows, weights[own], values + own * kHeadWords, 0, slot + own * kBlock);
    }
  }
}

// Adds the four warps' results for the same rows, from the last warp to the first, which has the sum.
__device__ __forceinline__ void add_warps(Rows &rows, float *merged) {
  const int warp = threadIdx.x / kWarp, group = threadIdx.x % kWarp / 4, member = threadIdx.x % 4;
  for (int turn = kWarps - 1; turn >= 0; --turn) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (warp != turn) break;
      float *mine = merged + (group + 8 * row) * (kDim + 2);
      float keep = 1, add = 0;
      if (turn < kWarps - 1) {
        const float most = fmaxf(rows.top[row], mine[kDim]);
        keep = exp2f(rows.top[row] - most);
        add = exp2f(mine[kDim] - most);
        rows.top[row] = most;
        rows.total[row] = rows.total[row] * keep + mine[kDim + 1] * add;
      }
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float &part = mine[n * 8 + member * 2 + i], &own = rows.accumulated[n][2 * row + i];
          if (add != 0) own = own * keep + part * add;
          part = own;
        }
      }
      __syncwarp();  // until all four lanes of a row have read its top and total
      mine[kDim] = rows.top[row];
      mine[kDim + 1] = rows.total[row];
    }
    __syncthreads();
  }
}

// The rows of this warp in an entry of the work list.
struct RowRange {
  Index start;  // index of the request's first token
  int first, num_rows;  // first row among the request's; the number is not positive in a warp without rows
  bool together;  // all warps compute the same rows
};

__device__ inline RowRange range_of(const Work &work, const Index *starts, int heads) {
  const Index start = starts[work.request];
  const int left = static_cast<int>(starts[work.request + 1] - start) * heads - work.first;
  const bool together = left <= kWarpRows;
  const int before = together ? 0 : threadIdx.x / kWarp * kWarpRows;
  return {start, work.first + before, left - before < kWarpRows ? left - before : kWarpRows, together};
}

// Computes an entry for one key/value head. The result of a tile with at most 16 rows is in the first warp.
__device__ __forceinline__ void compute(Rows &rows, Words *ring, const Work &work, const RowRange &range,
                                        const Element *query, const Words *keys, const Words *values, int context,
                                        const int *table, int block_words, int heads, int query_stride, int window,
                                        float scale) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, group = lane / 4, member = lane % 4;
  rows = {{}, {-1, -1}, -1, {}, {kLowest, kLowest}, {}};
  if (range.num_rows > 0) rows.last = context + (range.first + range.num_rows - 1) / heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = range.first + group + 8 * half;
    if (group + 8 * half >= range.num_rows) continue;
    rows.position[half] = context + row / heads;
    const Element *from = query + (range.start + row / heads) * query_stride + row % heads * kDim;
    const unsigned *pairs = reinterpret_cast<const unsigned *>(from) + member;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      rows.queries[step][half] = pairs[step * 8];
      rows.queries[step][half + 2] = pairs[step * 8 + 4];
    }
  }
  const int own = range.together ? kWarps : kWarps / 2 / kPieces;  // blocks that the warps copy at a time
  Blocks blocks = {table, work.begin + warp % own * kBlock, work.end, block_words};
  blocks.look_up();
  if (range.together) {
    attend_together(rows, ring, blocks, keys + lane, values + lane, work.begin, work.end, window, scale);
  } else {
    const Words *pool = warp < kWarps / 2 ? keys : values;
    attend_apart(rows, ring, blocks, pool + lane, work.begin, work.end, window, scale);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) rows.total[row] = row_sum(rows.total[row]);
  __syncthreads();  // no warp reads the ring any more
  if (range.together) add_warps(rows, reinterpret_cast<float *>(ring));
}

// Writes a warp's rows to the output, or to the partial results of a split.
__device__ __forceinline__ void write(const Rows &rows, const Work &work, const RowRange &range, Element *output,
                                      float *parts, int heads, int num_kv_heads) {
  const int group = threadIdx.x % kWarp / 4, member = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (group + 8 * half >= range.num_rows) continue;
    const int row = range.first + group + 8 * half;
    if (work.part < 0) {
      const float share = __fdividef(1, rows.total[half]);  // the exact quotient is a function call
      const Index token = range.start + row / heads;
      Element *to = output + ((token * num_kv_heads + blockIdx.y) * heads + row % heads) * kDim + member * 2;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        const float *own = &rows.accumulated[n][2 * half];
        *reinterpret_cast<unsigned *>(to + n * 8) = narrow_pair(own[0] * share, own[1] * share);
      }
    } else {
      float *to = parts + (static_cast<Index>(work.part + row - work.first) * num_kv_heads + blockIdx.y) * (kDim + 2);
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        to[n * 8 + member * 2] = rows.accumulated[n][2 * half];
        to[n * 8 + member * 2 + 1] = rows.accumulated[n][2 * half + 1];
      }
      if (member == 0) {
        to[kDim] = rows.top[half];
        to[kDim + 1] = rows.total[half];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident)
    orca_attention(const Element *query, const Words *key_pool, const Words *value_pool, const Index *starts,
                   const Index *contexts, const int *block_table, const Work *works, const Counts *counts,
                   Element *output, float *parts, int heads, int num_kv_heads, int table_width, int query_stride,
                   int window, float scale) {  // the scale is for powers of two
  __shared__ Words ring[kStages * kStageWords];
  const int kv_head = blockIdx.y;
  for (int index = blockIdx.x; index < counts->works; index += gridDim.x) {
    Rows rows;
    Work work = works[index];
    RowRange range = range_of(work, starts, heads);
    compute(rows, ring, work, range, query + kv_head * heads * kDim, key_pool + kv_head * kHeadWords,
            value_pool + kv_head * kHeadWords, static_cast<int>(contexts[work.request]),
            block_table + static_cast<Index>(work.request) * table_width, num_kv_heads * kHeadWords, heads,
            query_stride, window, scale);
    if (range.together && threadIdx.x >= kWarp) continue;
    work = works[index];  // again, rather than in registers all the time
    range = range_of(work, starts, heads);
    write(rows, work, range, output, parts, heads, num_kv_heads);
  }
}

// Write eight elements from d on of a key, or of a value, to slot `slot` of a head's block: of a key as pairs, which are
// adjacent in the block.
__device__ inline void put_key(Element *block, const Group<Element, kWide> &key, int d, int slot) {
#pragma unroll
  for (int n = 0; n < kWide; n += 2) {
    Element *to = block + place_in_pair(d / 16, slot / 8, d % 16 + n, slot % 8);
    *reinterpret_cast<unsigned *>(to) = pair(key.item[n], key.item[n + 1]);
  }
}

__device__ inline void put_value(Element *block, const Group<Element, kWide> &value, int d, int slot) {
#pragma unroll
  for (int n = 0; n < kWide; ++n) block[place_in_pair(d / 16, d / 8 % 2, slot, n)] = value.item[n];
}

#include "store.cuh"
