// The work list of a batch (plan.cu): one entry per tile and split of its context, which a thread block computes for
// one key/value head. A tile is up to 64 rows of a request; a row is a token and a query head that shares the
// key/value head.
#pragma once

constexpr int kBlock = 16;  // slots per block of the pools

// Rows from `first` of `request` over the slots from `begin` to `end`.
struct alignas(16) Work {
  int request, first, begin, end;
  int part;  // first row of the partial results [rows, key/value heads, D + 2], -1 for a tile without splits
  int unused[3];
};

// The `rows` rows from `first` of `request`, which has `splits` partial results, the first at row `part`.
struct alignas(16) Merge {
  int request, first, rows, splits, part;
  int unused[3];
};

// Lengths of both lists.
struct Counts {
  int works, merges;
};
