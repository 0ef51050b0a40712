#pragma once

#include <fmt/core.h>

#include <string>

// Only for sources that see no header of torch, which brings another version of fmt.
namespace self_attention::io {

/// fmt::vformat.
std::string formatted_arguments(fmt::string_view format, fmt::format_args arguments);

/// fmt::format, its engine compiled in one place: as a header it takes 8 s of every file that
/// formats a message, and near a minute under sanitizers.
template <typename... Arguments>
std::string formatted(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return formatted_arguments(format, fmt::make_format_args(arguments...));
}

}  // namespace self_attention::io
