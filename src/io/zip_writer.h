#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/output_file.h"

namespace self_attention::io {

/// Writes a zip archive of stored entries whose data start at multiples of 64, as torch.save does
/// so that readers may map them. Equal entries give equal bytes: no times, no permissions.
class ZipWriter {
 public:
  /// Sizes, offsets and counts from `zip64_from` on go into ZIP64 records; tests lower it.
  explicit ZipWriter(OutputFile& file, std::uint64_t zip64_from = 0xffffffff);

  void add(const std::string& name, std::span<const std::byte> data);
  void add(const std::string& name, std::string_view data);

  /// Writes the directory. The caller commits the file.
  void finish();

 private:
  struct Record {
    std::string name;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint32_t crc32;
  };

  OutputFile& file_;
  std::uint64_t zip64_from_;
  std::vector<Record> records_;
};

}  // namespace self_attention::io
