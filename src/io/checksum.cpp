#include "io/checksum.h"

#include <libdeflate.h>

namespace self_attention::io {

// Not zlib's, which takes longer than reading the bytes does.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace self_attention::io
