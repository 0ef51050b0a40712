#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace language_model {

/// A file as numbers: each byte that occurs in it has one, in the order of the bytes.
///
/// The text is cut into forty stretches, and every tenth of them is kept for validation, so that a
/// text that changes on its way is judged everywhere. A window is `context` characters and the one
/// that follows, all of one part.
class Text {
 public:
  /// Throws std::runtime_error where the file cannot be read, or has stretches shorter than a
  /// window.
  Text(const std::string& path, std::int64_t context);

  std::span<const unsigned char> numbers() const { return numbers_; }
  std::int64_t vocabulary_size() const { return static_cast<std::int64_t>(bytes_.size()); }
  /// Tells one text from another, in checkpoints.
  std::int64_t checksum() const { return checksum_; }

  /// How many windows there are to train on, and where one of them begins.
  std::int64_t training_windows() const;
  std::int64_t training_start(std::int64_t window) const;
  /// Where the windows for validation begin: side by side, or fewer of them where there are more
  /// than enough.
  const std::vector<std::int64_t>& validation_starts() const { return validation_starts_; }

  /// Throws std::runtime_error for a character that the text lacks.
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int64_t> numbers) const;

 private:
  /// Windows that begin one character after the other.
  struct Run {
    std::int64_t start;
    std::int64_t windows;
  };

  void read(const std::string& content);
  void split(std::int64_t context);

  std::string path_;
  std::vector<unsigned char> bytes_;  // by number
  std::vector<unsigned char> numbers_;
  std::vector<Run> training_;
  std::vector<std::int64_t> validation_starts_;
  std::int64_t checksum_ = 0;
};

}  // namespace language_model
