// Replays recorded calls one after the other; the arguments of a call are 64-bit words.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace orca {

constexpr int kMostArguments = 17;

struct Call {
  void (*run)(const uint64_t *words);
  uint64_t words[kMostArguments];
};

template <typename T>
T from_word(uint64_t word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else {
    T value;  // in the first bytes of the word, whatever its width (x86-64 and Arm under Linux are little-endian)
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
}

template <typename... T, std::size_t... I>
void apply(void (*function)(T...), const uint64_t *words, std::index_sequence<I...>) {
  function(from_word<T>(words[I])...);
}

template <typename... T>
void apply(void (*function)(T...), const uint64_t *words) {
  static_assert(sizeof...(T) <= kMostArguments);
  apply(function, words, std::index_sequence_for<T...>{});
}

}  // namespace orca
