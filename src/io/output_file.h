#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace self_attention::io {

/// A file that appears whole or not at all.
///
/// Bytes go to a temporary file in the target's folder; commit() syncs it to disk and renames it
/// over the target, so whoever opens the target sees the old file or the complete new one, also
/// after a crash or on a full disk. Without commit() the temporary file is removed; a process that
/// is killed leaves it behind (".NAME.N.tmp") and the target untouched, and the next one to write
/// the target removes it. Several may write one target at once: the last to commit stays.
class OutputFile {
 public:
  /// A symbolic link is followed: the file it names is the one replaced. Throws FormatError when
  /// the folder or an existing target cannot be written, or the target is no regular file.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes written so far.
  std::uint64_t position() const { return position_; }

  void write(std::span<const std::byte> bytes);
  void write(std::string_view bytes);

  /// The last call: afterwards the target holds what was written, with the mode it had before.
  void commit();

 private:
  void create_temporary();
  /// Makes `path` the temporary file; false where another writer has it.
  bool claim_temporary(std::string path);
  void discard() noexcept;
  /// Throws FormatError that words errno.
  [[noreturn]] void fail(std::string_view action) const;

  std::string path_;       // as given, for messages
  std::string target_;     // path_ with symbolic links resolved
  std::string temporary_;  // empty once renamed
  int descriptor_ = -1;
  std::uint64_t position_ = 0;
};

}  // namespace self_attention::io
