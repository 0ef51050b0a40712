#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace self_attention::io {

/// A regular file opened for positioned reads.
///
/// Reads go through pread into memory of the caller's, never through a mapping: a mapped file that
/// somebody truncates ends the process with SIGBUS, a short pread is an error that can be reported.
class InputFile {
 public:
  /// Throws FormatError when `path` cannot be opened or is not a regular file.
  explicit InputFile(std::string path);
  /// The same reads from bytes in memory; `name` stands for the path in messages.
  static InputFile from_memory(std::string name, std::vector<std::byte> bytes);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes in the file when it was opened.
  std::uint64_t size() const { return size_; }

  /// Fills `destination` from `offset`. Throws FormatError when the range leaves the file or the
  /// file has become shorter. Safe to call from many threads.
  void read(std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  InputFile() = default;

  std::string path_;
  int descriptor_ = -1;  // -1: the bytes are in memory_
  std::vector<std::byte> memory_;
  std::uint64_t size_ = 0;
};

}  // namespace self_attention::io
