#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace self_attention::io {

/// A tensor as the header's JSON words it: well formed, nothing compared with the file yet.
struct SafetensorsJsonTensor {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> data_offsets;
};

struct SafetensorsJson {
  std::vector<SafetensorsJsonTensor> tensors;  ///< in the order of the text, duplicates included
  std::map<std::string, std::string> metadata;
};

/// Parses the text without ever building a JSON tree; `path` is for messages. Throws FormatError.
SafetensorsJson parse_safetensors_json(const std::string& path, std::span<const std::byte> text);

}  // namespace self_attention::io
