#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/element_type.h"
#include "io/output_file.h"

namespace self_attention::io {

/// A tensor to be written, without its bytes.
struct TensorDescription {
  std::string name;
  ElementType type;
  std::vector<std::int64_t> shape;
};

/// The bytes of tensor `index`, contiguous and row-major. Writers ask once for each tensor and are
/// done with one before they ask for the next, so one buffer can serve them all.
using TensorBytes = std::function<std::span<const std::byte>(std::size_t index)>;

/// Bytes of each tensor by its description. Throws FormatError, naming `file`, where a size exceeds
/// 64 bits or two tensors have one name.
std::vector<std::uint64_t> checked_sizes(const OutputFile& file,
                                         std::span<const TensorDescription> tensors);

/// bytes_of(index), proved to be `expected` long.
std::span<const std::byte> checked_bytes(const TensorBytes& bytes_of, std::size_t index,
                                         std::uint64_t expected);

}  // namespace self_attention::io
