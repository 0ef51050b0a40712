#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace self_attention::io {

/// "a, b, c"
std::string joined(std::span<const std::string> texts, std::string_view separator);

/// Text that came from a file, fit for a message: in quotes, long text cut, and all but printable
/// ASCII escaped (a hostile name must not steer a terminal or break a log's encoding).
std::string in_quotes(std::string_view text);

/// "(2, 7)", "(7,)", "()".
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace self_attention::io
