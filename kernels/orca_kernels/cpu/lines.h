// Memory for vectors of floats.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace orca {

// Memory whose vectors do not cross cache lines.
template <typename E>
struct LineAllocator {
  typedef E value_type;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <typename Other>
  LineAllocator(const LineAllocator<Other> &) {}
  E *allocate(std::size_t count) { return static_cast<E *>(::operator new(count * sizeof(E), kLine)); }
  void deallocate(E *memory, std::size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator &) const { return true; }
  bool operator!=(const LineAllocator &) const { return false; }
};

template <typename E>
using Lines = std::vector<E, LineAllocator<E>>;

}  // namespace orca
