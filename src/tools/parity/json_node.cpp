#include "tools/parity/json_node.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/format_error.h"
#include "io/text.h"

namespace self_attention::parity {
namespace {

using Json = nlohmann::json;

/// The value as a message shows it: scalars in full, the rest by kind.
std::string shown(const Json& value) {
  if (value.is_string()) return io::in_quotes(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return value.dump();
}

}  // namespace

void JsonNode::fail(std::string_view expected) const {
  throw io::FormatError(
      fmt::format("{}: expected {}, got {}; {}", place_, expected, shown(*value_), kExportAgain));
}

std::optional<JsonNode> JsonNode::find(const std::string& key) const {
  if (!value_->is_object()) fail("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) return std::nullopt;
  return JsonNode(*found, fmt::format("{}: {}", place_, key));
}

JsonNode JsonNode::at(const std::string& key) const {
  if (auto node = find(key)) return *node;
  throw io::FormatError(fmt::format("{}: {} is missing; {}", place_, key, kExportAgain));
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) fail("a list");
  std::vector<JsonNode> nodes;
  for (std::size_t i = 0; i < value_->size(); ++i) {
    nodes.emplace_back((*value_)[i], fmt::format("{}[{}]", place_, i));
  }
  return nodes;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  if (!value_->is_object()) fail("an object");
  std::vector<std::pair<std::string, JsonNode>> nodes;
  for (const auto& [key, value] : value_->items()) {
    nodes.emplace_back(key, JsonNode(value, fmt::format("{}: {}", place_, io::in_quotes(key))));
  }
  return nodes;
}

std::string JsonNode::text() const {
  if (!value_->is_string()) fail("a text");
  return value_->get<std::string>();
}

std::string JsonNode::line(std::size_t longest) const {
  std::string line = text();
  const bool printable = std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; });
  if (line.empty() || line.size() > longest || !printable) {
    fail(fmt::format("1 to {} printable ASCII characters", longest));
  }
  return line;
}

std::int64_t JsonNode::integer(std::int64_t lowest, std::int64_t highest) const {
  const std::string expected = fmt::format("a whole number from {} to {}", lowest, highest);
  if (!value_->is_number_integer()) fail(expected);
  // Beyond int64 the parser keeps an unsigned number, which a conversion would wrap.
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX) fail(expected);
  const auto number = value_->get<std::int64_t>();
  if (number < lowest || number > highest) fail(expected);
  return number;
}

bool JsonNode::flag() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

Json parse_json(const std::string& path, std::string_view text) {
  constexpr int kDeepest = 16;
  const auto bounded = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) {
      throw io::FormatError(fmt::format("{}: expected at most {} levels of JSON, got more; {}",
                                        path, kDeepest, kExportAgain));
    }
    return true;
  };
  try {
    return Json::parse(text, bounded);
  } catch (const Json::exception& error) {
    throw io::FormatError(
        fmt::format("{}: expected JSON: {}; {}", path, io::in_quotes(error.what()), kExportAgain));
  }
}

}  // namespace self_attention::parity
