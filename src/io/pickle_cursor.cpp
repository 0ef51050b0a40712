#include "io/pickle_cursor.h"

#include "io/formatted.h"

namespace self_attention::io {

std::string_view PickleCursor::take(std::uint64_t count) {
  if (count > rest_.size()) {
    throw PickleTruncated(
        formatted("{}: pickle at byte {}: expected {} bytes more, found {}: the file is truncated",
                  source_.name, opcode_start_, count, rest_.size()));
  }
  const std::string_view taken(reinterpret_cast<const char*>(rest_.data()), count);
  rest_ = rest_.subspan(count);
  return taken;
}

std::string_view PickleCursor::line() {
  const std::string_view all(reinterpret_cast<const char*>(rest_.data()), rest_.size());
  const std::size_t end = all.find('\n');
  if (end == std::string_view::npos) {
    throw PickleTruncated(
        formatted("{}: pickle at byte {}: expected a line, found no end of it: the file is "
                  "truncated",
                  source_.name, opcode_start_));
  }
  const std::string_view text = take(end);
  take(1);
  return text;
}

void PickleCursor::fail(const std::string& what) const {
  throw FormatError(formatted("{}: pickle at byte {}: {}", source_.name, opcode_start_, what));
}

}  // namespace self_attention::io
