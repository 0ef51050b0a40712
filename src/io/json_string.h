#pragma once

#include <optional>
#include <string>

namespace self_attention::io {

/// The text in JSON's quotes and escapes; nothing if it is not valid UTF-8.
std::optional<std::string> json_string(const std::string& text);

}  // namespace self_attention::io
