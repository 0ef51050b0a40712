#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/input_file.h"

namespace self_attention::io {

/// One entry of a zip archive whose place in the file has been verified.
struct ZipEntry {
  std::string name;
  std::uint64_t header_offset;  ///< where the local header starts
  std::uint64_t offset;         ///< where the data start
  std::uint64_t bytes;          ///< of the data as they lie in the file
  std::uint32_t crc32;          ///< of the data after decompression
  bool stored;                  ///< neither compressed nor encrypted, so readable here
};

/// The entries of a zip archive, sorted by name.
struct ZipDirectory {
  std::vector<ZipEntry> entries;

  /// The entry of that name, or nullptr.
  const ZipEntry* find(std::string_view name) const;
};

/// Reads the central directory (APPNOTE.TXT of PKWARE, with ZIP64) and compares every local header
/// with it.
///
/// Refuses with FormatError: archives of several disks, directories that are not whole, local
/// headers that say something else, entries that leave the file or overlap, names that occur twice.
ZipDirectory read_zip_directory(const InputFile& file);

/// Throws FormatError for an entry that is compressed or encrypted.
void require_stored(const InputFile& file, const ZipEntry& entry);

/// The bytes of a stored entry, whose checksum has been verified. Throws FormatError.
std::vector<std::byte> read_zip_entry(const InputFile& file, const ZipEntry& entry);

}  // namespace self_attention::io
