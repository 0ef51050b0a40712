#include "io/verified_read.h"

#include <zlib.h>

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "io/format_error.h"
#include "io/formatted.h"

namespace self_attention::io {
namespace {

/// Reads and returns the checksum of what was read.
std::uint32_t read_piece(const InputFile& file, std::uint64_t offset,
                         std::span<std::byte> destination) {
  // The checksum follows the read closely, while a chunk is still in the cache.
  constexpr std::size_t kChunk = std::size_t{1} << 18;
  uLong crc = 0;
  for (std::size_t done = 0; done < destination.size(); done += kChunk) {
    const auto chunk = destination.subspan(done, std::min(kChunk, destination.size() - done));
    file.read(offset + done, chunk);
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(chunk.data()), chunk.size());
  }
  return static_cast<std::uint32_t>(crc);
}

/// zlib's checksum runs at 2 GB/s, a quarter of memory's speed, so large ranges are read by several
/// threads.
std::uint32_t read_pieces(const InputFile& file, std::uint64_t offset,
                          std::span<std::byte> destination) {
  constexpr std::size_t kSmallestPiece = std::size_t{1} << 25;
  constexpr std::size_t kMostThreads = 8;
  const std::size_t threads =
      std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  const std::size_t length = std::max(kSmallestPiece, destination.size() / threads + 1);
  const auto first = destination.first(std::min(length, destination.size()));
  std::vector<std::future<std::uint32_t>> checksums;
  for (std::size_t start = length; start < destination.size(); start += length) {
    const auto piece = destination.subspan(start, std::min(length, destination.size() - start));
    checksums.push_back(std::async(std::launch::async, [&file, start = offset + start, piece] {
      return read_piece(file, start, piece);
    }));
  }
  uLong crc = read_piece(file, offset, first);
  std::size_t rest = destination.size() - first.size();
  for (std::future<std::uint32_t>& checksum : checksums) {
    const std::size_t count = std::min(length, rest);
    crc = ::crc32_combine(crc, checksum.get(), static_cast<z_off_t>(count));
    rest -= count;
  }
  return static_cast<std::uint32_t>(crc);
}

}  // namespace

void read_verified(const InputFile& file, const VerifiedRange& range,
                   std::span<std::byte> destination) {
  if (!range.crc32) {
    file.read(range.offset, destination);
    return;
  }
  const std::uint32_t crc = read_pieces(file, range.offset, destination);
  if (crc != *range.crc32) {
    throw FormatError(formatted(
        "{}: {}: expected checksum {:08x}, found {:08x}: the file is altered (or was saved without "
        "checksums, see torch.serialization.set_crc32_options)",
        file.path(), range.label, *range.crc32, crc));
  }
}

}  // namespace self_attention::io
