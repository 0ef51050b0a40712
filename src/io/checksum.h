#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace self_attention::io {

/// The CRC-32 of zip archives; with `before`, that of earlier bytes followed by these.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace self_attention::io
