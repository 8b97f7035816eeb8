// AMX tiles: registers of up to 16 rows of 64 bytes, in shapes that each thread configures. TDPBF16PS adds to each float of
// a tile the products of a row of pairs of bfloat16 and a column of pairs, in an order that depends on nothing else.
// TDPBSUD adds to each integer the products of a row of signed bytes and a column of unsigned ones, four in a word;
// TDPBSSD those of a column of signed ones.
// (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG, TDPBF16PS, TDPBSUD and TDPBSSD)
#pragma once

#if defined(__AMX_BF16__)
#include <immintrin.h>

#include <cstdint>

#include "dot_products.h"

namespace orca {

constexpr int64_t kTileRows = 16, kTileWords = 16;  // of a tile; a word is a sum, two bfloat16 or four bytes
constexpr int64_t kTileBytes = kTileWords * 4;      // of a tile's row

// Operand of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int64_t count, int64_t words) {
    row_bytes[tile] = static_cast<uint16_t>(count > 0 ? words * 4 : 0);
    rows[tile] = static_cast<uint8_t>(count > 0 ? count : 0);
  }
};

// The tiles of one thread. A thread without tiles in use is cheaper to suspend.
class Tiles {
 public:
  ~Tiles() {
    if (shapes_) _tile_release();
  }

  // `shapes` are constants in memory: GCC's intrinsic does not say that it reads all of their bytes.
  void configure(const TileShapes *shapes) {
    if (shapes != shapes_) _tile_loadconfig(shapes);
    shapes_ = shapes;
  }

 private:
  const TileShapes *shapes_ = nullptr;
};

// To be called between writing memory and loading it into tiles: GCC's intrinsic does not say that it reads memory.
inline void finish_writes(const void *memory) { asm volatile("" ::"r"(memory) : "memory"); }

struct FullShapes : TileShapes {
  constexpr FullShapes() {
    for (int tile = 0; tile < 8; ++tile) set(tile, kTileRows, kTileWords);
  }
};
constexpr FullShapes kFullShapes;

// Whether a tile instruction takes less time than the 256 dot products that do its work would take at best: as long as
// fused multiplications and additions. Few rows are limited by memory in either case. Takes half a millisecond.
inline bool tiles_pay() {
  double tiles = 1e9, products = 1e9;
  Tiles registers;
  registers.configure(&kFullShapes);  // sets them to zero
  for (int run = 0; run < 50; ++run) {
    tiles = std::min(tiles, time_of([] {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }));
    products = std::min(products, time_of(twelve_products));
  }
  return tiles / 4 < products / 12 * 256;
}

}  // namespace orca
#endif
