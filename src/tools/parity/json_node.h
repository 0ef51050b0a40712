#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace self_attention::parity {

/// What every complaint about a reference directory ends with.
inline constexpr std::string_view kExportAgain =
    "export the directory again: scripts/export_reference.py --out DIR";

/// A value of a JSON file together with the place it came from, so that whoever reads it need not
/// write messages: every accessor checks the type and the bounds, and throws io::FormatError that
/// names the place, what was expected, what came and the remedy.
class JsonNode {
 public:
  /// `value` must outlive the node.
  JsonNode(const nlohmann::json& value, std::string place)
      : value_(&value), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  /// The same value under a better name for the place.
  JsonNode renamed(std::string place) const { return {*value_, std::move(place)}; }

  /// Member of an object; the first throws when there is none.
  JsonNode at(const std::string& key) const;
  std::optional<JsonNode> find(const std::string& key) const;

  std::vector<JsonNode> items() const;
  std::vector<std::pair<std::string, JsonNode>> members() const;
  std::string text() const;
  /// Printable ASCII, not empty, at most `longest` characters.
  std::string line(std::size_t longest) const;
  std::int64_t integer(std::int64_t lowest, std::int64_t highest) const;
  bool flag() const;

  [[noreturn]] void fail(std::string_view expected) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

/// Parses `text`, the content of the file at `path`. Nesting is bounded, so that a hostile file
/// cannot exhaust memory or stack.
nlohmann::json parse_json(const std::string& path, std::string_view text);

}  // namespace self_attention::parity
