#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>

namespace self_attention::io {

// Tensor bytes are taken and given as they lie in memory, so the whole of io is for such machines.
static_assert(std::endian::native == std::endian::little, "big-endian machines are not supported");

/// The little-endian number that starts at `bytes`; any alignment.
template <typename T>
T little_endian(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// Appends the number's bytes, least significant first.
template <std::integral T>
void append_little_endian(std::string& out, T value) {
  const char* bytes = reinterpret_cast<const char*>(&value);
  out.append(bytes, sizeof(T));
}

}  // namespace self_attention::io
