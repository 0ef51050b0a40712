#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checksum.h"
#include "support/bytes.h"

namespace self_attention::io_test {

/// An entry, and the lies its headers tell.
struct BuiltEntry {
  std::string name = {};
  std::string data = {};
  std::uint16_t method = 0;
  std::uint16_t flags = 0;
  std::string local_name = {};      ///< empty: the name
  std::int64_t crc_change = 0;      ///< added to the checksum in both headers
  std::int64_t local_change = 0;    ///< added to the size in the local header
  std::int64_t central_change = 0;  ///< added to the compressed size in the directory
  std::int64_t real_change = 0;     ///< added to the uncompressed size in the directory
  std::int64_t offset_change = 0;   ///< added to the place in the directory
  std::string central_extra = {};
  bool zip64 = false;  ///< its numbers in a ZIP64 field
};

struct ZipOptions {
  bool zip64 = false;           ///< a ZIP64 end record and its locator
  int count_change = 0;         ///< added to the number of entries
  std::int64_t end_change = 0;  ///< added to the place of the directory
  std::uint16_t disk = 0;
  std::string comment = {};
  std::string before_end = {};  ///< between the directory and the end records
  std::int64_t locator_change = 0;
  std::uint32_t end64_signature = 0x06064b50;
};

/// The bytes of a zip archive, written apart from the library's own writer.
inline std::string build_zip(const std::vector<BuiltEntry>& entries,
                             const ZipOptions& options = {}) {
  const auto u16 = [](auto value) { return number(static_cast<std::uint16_t>(value)); };
  const auto u32 = [](auto value) { return number(static_cast<std::uint32_t>(value)); };
  const auto u64 = [](auto value) { return number(static_cast<std::uint64_t>(value)); };
  const std::string fixed_time = u16(0) + u16(33);
  std::string out;
  std::string directory;
  for (const BuiltEntry& entry : entries) {
    const auto size = static_cast<std::int64_t>(entry.data.size());
    const auto offset = static_cast<std::int64_t>(out.size()) + entry.offset_change;
    const auto crc = entry.crc_change +
                     static_cast<std::int64_t>(io::crc32(std::as_bytes(std::span(entry.data))));
    const std::string start = u16(entry.flags) + u16(entry.method) + fixed_time;
    const std::string& local_name = entry.local_name.empty() ? entry.name : entry.local_name;
    const bool open = (entry.flags & 8) != 0;
    const std::string local_extra = entry.zip64 ? u16(1) + u16(16) + u64(size) + u64(size) : "";
    const auto local_size = entry.zip64 ? 0xffffffff : size + entry.local_change;
    out.append("PK\3\4").append(u16(20)).append(start);
    out += open ? std::string(12, '\0') : u32(crc) + u32(local_size) + u32(local_size);
    out += u16(local_name.size()) + u16(local_extra.size());
    out.append(local_name).append(local_extra).append(entry.data);
    if (open) out += "PK\7\b" + u32(crc) + u32(size) + u32(size);

    const std::string extra =
        entry.zip64 ? u16(1) + u16(24) + u64(size) + u64(size) + u64(offset) : entry.central_extra;
    directory += "PK\1\2" + u16(20) + u16(20) + start + u32(crc);
    directory += entry.zip64 ? std::string(8, '\xff')
                             : u32(size + entry.central_change) + u32(size + entry.real_change);
    directory += u16(entry.name.size()) + u16(extra.size()) + std::string(10, '\0');
    directory += entry.zip64 ? std::string(4, '\xff') : u32(offset);
    directory.append(entry.name).append(extra);
  }
  const auto start = static_cast<std::int64_t>(out.size()) + options.end_change;
  const auto count = static_cast<int>(entries.size()) + options.count_change;
  out += directory + options.before_end;
  if (options.zip64) {
    const auto end64 = static_cast<std::int64_t>(out.size()) + options.locator_change;
    out += u32(options.end64_signature) + u64(44) + u16(45) + u16(45) + u64(0) + u64(count) +
           u64(count) + u64(directory.size()) + u64(start);
    out += "PK\6\7" + u32(0) + u64(end64) + u32(1);
  }
  out += "PK\5\6" + u16(options.disk) + u16(options.disk) + u16(count) + u16(count);
  out += u32(directory.size()) + u32(start) + u16(options.comment.size()) + options.comment;
  return out;
}

}  // namespace self_attention::io_test
