// Emulates AMX tiles for a processor without them (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2:
// LDTILECFG, TILELOADD, TDPBF16PS, TDPBSUD, TDPBSSD and others). The compiler's option `-include` puts this file before the product's
// source, where it replaces the intrinsics. What a processor would refuse (#UD, #GP) ends the process with a message.
#pragma once

#include <immintrin.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1

namespace emulated_tiles {

constexpr int kTiles = 8, kMostRows = 16, kMostBytes = 64;  // palette 1

inline void check(bool condition, const char *instruction, const char *rule) {
  if (condition) return;
  std::fprintf(stderr, "emulated tiles: %s: %s\n", instruction, rule);
  std::abort();
}

struct Tile {
  int rows, row_bytes;
  alignas(64) unsigned char bytes[kMostRows][kMostBytes];
};

// Of one thread.
struct State {
  bool configured;
  Tile tiles[kTiles];

  // A tile that an instruction may use.
  Tile &at(int index, const char *instruction) {
    check(configured, instruction, "no configuration");
    check(index >= 0 && index < kTiles, instruction, "no such tile");
    check(tiles[index].rows > 0, instruction, "a tile without a shape");
    return tiles[index];
  }
};

inline State &state() {
  static thread_local State state{};
  return state;
}

inline void release() { state() = State{}; }

inline void load_configuration(const void *memory) {
  const char *name = "LDTILECFG";
  const unsigned char *bytes = static_cast<const unsigned char *>(memory);
  release();
  if (bytes[0] == 0) return;
  check(bytes[0] == 1, name, "palette other than 0 and 1");
  for (int place = 0; place < 64; ++place) {
    const bool reserved = (place >= 2 && place < 16) || (place >= 32 && place < 48) || place >= 56;
    check(!reserved || bytes[place] == 0, name, "reserved byte other than 0");
  }
  check(bytes[1] == 0, name, "start row other than 0: not emulated");
  for (int index = 0; index < kTiles; ++index) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * index, sizeof(row_bytes));
    const int rows = bytes[48 + index];
    check(rows <= kMostRows, name, "more than 16 rows");
    check(row_bytes <= kMostBytes, name, "more than 64 bytes per row");
    check((rows == 0) == (row_bytes == 0), name, "rows without bytes, or bytes without rows");
    state().tiles[index].rows = rows;
    state().tiles[index].row_bytes = row_bytes;
  }
  state().configured = true;
}

inline void zero(int index) {
  Tile &tile = state().at(index, "TILEZERO");
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
}

inline void load(int index, const void *from, long stride) {
  zero(index);
  Tile &tile = state().at(index, "TILELOADD");
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.bytes[row], static_cast<const char *>(from) + row * stride, tile.row_bytes);
  }
}

inline void store(int index, void *to, long stride) {
  const Tile &tile = state().at(index, "TILESTORED");
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(static_cast<char *>(to) + row * stride, tile.bytes[row], tile.row_bytes);
  }
}

// Subnormal numbers are zero, in operands and results.
inline float flushed(float value) { return std::fabs(value) < FLT_MIN ? std::copysign(0.0f, value) : value; }

inline float widened(const unsigned char *from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return flushed(value);
}

// The tiles of a product.
struct Operands {
  Tile &c;
  const Tile &a, &b;
};

inline Operands operands(const char *name, int to, int left, int right) {
  check(to != left && to != right && left != right, name, "a tile is more than one operand");
  Tile &c = state().at(to, name);
  const Tile &a = state().at(left, name), &b = state().at(right, name);
  check(c.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0, name, "rows of incomplete words");
  check(c.rows == a.rows, name, "sums and left operand differ in rows");
  check(a.row_bytes / 4 == b.rows, name, "words of the left operand and rows of the right one differ");
  check(c.row_bytes == b.row_bytes, name, "sums and right operand differ in bytes per row");
  return {c, a, b};
}

inline void multiply(int to, int left, int right) {
  auto [c, a, b] = operands("TDPBF16PS", to, left, right);
  for (int row = 0; row < c.rows; ++row) {
    float even[kMostBytes / 4] = {}, odd[kMostBytes / 4] = {};
    for (int pair = 0; pair < a.row_bytes / 4; ++pair) {
      const float first = widened(a.bytes[row] + 4 * pair), second = widened(a.bytes[row] + 4 * pair + 2);
      for (int column = 0; column < c.row_bytes / 4; ++column) {
        const unsigned char *word = b.bytes[pair] + 4 * column;
        even[column] = flushed(std::fma(first, widened(word), even[column]));
        odd[column] = flushed(std::fma(second, widened(word + 2), odd[column]));
      }
    }
    for (int column = 0; column < c.row_bytes / 4; ++column) {
      float sum;
      std::memcpy(&sum, c.bytes[row] + 4 * column, sizeof(sum));
      sum = flushed(flushed(sum) + flushed(even[column] + odd[column]));
      std::memcpy(c.bytes[row] + 4 * column, &sum, sizeof(sum));
    }
  }
  for (int row = c.rows; row < kMostRows; ++row) std::memset(c.bytes[row], 0, kMostBytes);
}

// Signed bytes of the left operand times unsigned or signed ones (`Right`) of the right operand; sums wrap.
template <typename Right>
inline void multiply_bytes(const char *name, int to, int left, int right) {
  auto [c, a, b] = operands(name, to, left, right);
  for (int row = 0; row < c.rows; ++row) {
    for (int column = 0; column < c.row_bytes / 4; ++column) {
      uint32_t sum;
      std::memcpy(&sum, c.bytes[row] + 4 * column, sizeof(sum));
      for (int place = 0; place < a.row_bytes; ++place) {
        const int first = static_cast<int8_t>(a.bytes[row][place]);
        const int second = static_cast<Right>(b.bytes[place / 4][4 * column + place % 4]);
        sum += static_cast<uint32_t>(first * second);
      }
      std::memcpy(c.bytes[row] + 4 * column, &sum, sizeof(sum));
    }
  }
  for (int row = c.rows; row < kMostRows; ++row) std::memset(c.bytes[row], 0, kMostBytes);
}

}  // namespace emulated_tiles

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_dpbssd
#define _tile_loadconfig(memory) emulated_tiles::load_configuration(memory)
#define _tile_release() emulated_tiles::release()
#define _tile_zero(tile) emulated_tiles::zero(tile)
#define _tile_loadd(tile, from, stride) emulated_tiles::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_tiles::store(tile, to, stride)
#define _tile_dpbf16ps(to, left, right) emulated_tiles::multiply(to, left, right)
#define _tile_dpbsud(to, left, right) emulated_tiles::multiply_bytes<uint8_t>("TDPBSUD", to, left, right)
#define _tile_dpbssd(to, left, right) emulated_tiles::multiply_bytes<int8_t>("TDPBSSD", to, left, right)
