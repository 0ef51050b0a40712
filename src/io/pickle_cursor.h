#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "io/little_endian.h"
#include "io/pickle.h"

namespace self_attention::io {

/// Takes a pickle's bytes in order and words errors with the place of the current opcode.
class PickleCursor {
 public:
  explicit PickleCursor(const PickleSource& source) : source_(source), rest_(source.bytes) {}

  std::size_t position() const { return source_.bytes.size() - rest_.size(); }

  std::uint8_t opcode() {
    opcode_start_ = position();
    return number<std::uint8_t>();
  }

  template <typename T>
  T number() {
    return little_endian<T>(reinterpret_cast<const std::byte*>(take(sizeof(T)).data()));
  }

  /// The next `count` bytes. Throws PickleTruncated.
  std::string_view take(std::uint64_t count);

  /// The bytes up to a line feed, which is taken too.
  std::string_view line();

  [[noreturn]] void fail(const std::string& what) const;

 private:
  const PickleSource& source_;
  std::span<const std::byte> rest_;
  std::size_t opcode_start_ = 0;
};

}  // namespace self_attention::io
