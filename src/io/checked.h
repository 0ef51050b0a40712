#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace self_attention::io {

/// a + b, or nothing when it exceeds 64 bits.
inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a * b, or nothing when it exceeds 64 bits.
inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Bytes of a contiguous tensor, or nothing for a negative dimension or where the strides or sizes
/// in bytes that follow from the shape exceed a signed 64-bit number. The latter also rules out
/// shapes such as (0, 2^62, 2^62), which hold nothing but have no strides.
inline std::optional<std::uint64_t> tensor_bytes(std::span<const std::int64_t> shape,
                                                 std::size_t element_size) {
  auto bytes = static_cast<std::int64_t>(element_size);
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    empty = empty || dimension == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(dimension, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

/// Strides in elements of a contiguous tensor, as PyTorch counts them: an empty dimension leaves
/// the stride as it is. For a shape that tensor_bytes accepts.
inline std::vector<std::int64_t> contiguous_strides(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace self_attention::io
