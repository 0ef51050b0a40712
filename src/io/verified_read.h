#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/input_file.h"

namespace self_attention::io {

/// A part of a file and the checksum it must have.
struct VerifiedRange {
  std::string label;  ///< for messages
  std::uint64_t offset;
  std::optional<std::uint32_t> crc32;
};

/// Fills `destination` from the range. Throws FormatError, also where the checksum differs.
void read_verified(const InputFile& file, const VerifiedRange& range,
                   std::span<std::byte> destination);

}  // namespace self_attention::io
