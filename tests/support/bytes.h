#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "io/format_error.h"
#include "io/input_file.h"
#include "io/little_endian.h"

namespace self_attention::io_test {

inline std::vector<std::byte> to_bytes(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

/// A file in memory, called "test.file" in messages.
inline io::InputFile file_of(std::string_view bytes) {
  return io::InputFile::from_memory("test.file", to_bytes(bytes));
}

template <typename T>
std::string number(T value) {
  std::string bytes;
  io::append_little_endian(bytes, value);
  return bytes;
}

/// The message of the FormatError that `action` throws; "nothing thrown" if it returns.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const io::FormatError& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// One row of a table of malformed files: the test's name, the file, and words of its message.
struct Malformed {
  std::string name;
  std::string bytes;
  std::string message;
};

inline void PrintTo(const Malformed& row, std::ostream* out) {
  *out << row.name << " (" << row.bytes.size() << " bytes)";
}

template <typename Info>
std::string row_name(const Info& info) {
  return info.param.name;
}

}  // namespace self_attention::io_test
