#include "io/json_string.h"

#include <nlohmann/json.hpp>

namespace self_attention::io {

std::optional<std::string> json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return std::nullopt;
  }
}

}  // namespace self_attention::io
