#include "io/verified_read.h"

#include <algorithm>

#include "io/checksum.h"
#include "io/format_error.h"
#include "io/formatted.h"

namespace self_attention::io {

void read_verified(const InputFile& file, const VerifiedRange& range,
                   std::span<std::byte> destination) {
  if (!range.crc32) {
    file.read(range.offset, destination);
    return;
  }
  // The checksum follows the read closely, while a chunk is still in the cache.
  constexpr std::size_t kChunk = std::size_t{1} << 18;
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < destination.size(); done += kChunk) {
    const auto chunk = destination.subspan(done, std::min(kChunk, destination.size() - done));
    file.read(range.offset + done, chunk);
    crc = crc32(chunk, crc);
  }
  if (crc != *range.crc32) {
    throw FormatError(formatted(
        "{}: {}: expected checksum {:08x}, found {:08x}: the file is altered (or was saved without "
        "checksums, see torch.serialization.set_crc32_options)",
        file.path(), range.label, *range.crc32, crc));
  }
}

}  // namespace self_attention::io
