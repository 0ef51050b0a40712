#include "io/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "io/format_error.h"
#include "io/formatted.h"
#include "io/json_string.h"
#include "io/little_endian.h"
#include "io/safetensors_types.h"
#include "io/text.h"

namespace self_attention::io {
namespace {

constexpr std::size_t kAlignment = 8;

std::vector<std::size_t> data_order(std::span<const TensorDescription> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const std::size_t size_a = element_size(tensors[a].type);
    const std::size_t size_b = element_size(tensors[b].type);
    return std::tie(size_b, tensors[a].name) < std::tie(size_a, tensors[b].name);
  });
  return order;
}

/// The JSON, padded with spaces so that the data start aligned.
std::string header_text(const OutputFile& file, std::span<const TensorDescription> tensors,
                        std::span<const std::size_t> order, std::span<const std::uint64_t> sizes,
                        const std::map<std::string, std::string>& metadata) {
  const auto quote = [&](const std::string& text) {
    const std::optional<std::string> json = json_string(text);
    if (!json)
      throw FormatError(
          formatted("{}: expected metadata in UTF-8, got {}", file.path(), in_quotes(text)));
    return *json;
  };
  std::vector<std::string> fields;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    pairs.reserve(metadata.size());
    pairs.reserve(metadata.size());
    for (const auto& [key, value] : metadata) {
      pairs.push_back(quote(key) + ":" + quote(value));
    }
    fields.push_back(formatted(R"("__metadata__":{{{}}})", joined(pairs, ",")));
  }
  std::uint64_t offset = 0;
  for (const std::size_t i : order) {
    const TensorDescription& tensor = tensors[i];
    if (tensor.name == "__metadata__") {
      throw FormatError(
          formatted("{}: safetensors keeps the name __metadata__ for itself", file.path()));
    }
    std::vector<std::string> dimensions;
    dimensions.reserve(tensor.shape.size());
    for (const std::int64_t dimension : tensor.shape) {
      dimensions.push_back(std::to_string(dimension));
    }
    fields.push_back(formatted(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                               quote(tensor.name), safetensors_name(tensor.type),
                               joined(dimensions, ","), offset, offset + sizes[i]));
    offset += sizes[i];
  }
  std::string text = formatted("{{{}}}", joined(fields, ","));
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (text.size() > kLongestSafetensorsHeader) {
    throw FormatError(formatted("{}: safetensors allows a header of {} bytes, got {}", file.path(),
                                kLongestSafetensorsHeader, text.size()));
  }
  return text;
}

}  // namespace

void write_safetensors(OutputFile& file, std::span<const TensorDescription> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const TensorBytes& bytes_of) {
  const std::vector<std::uint64_t> sizes = checked_sizes(file, tensors);
  const std::vector<std::size_t> order = data_order(tensors);
  const std::string header = header_text(file, tensors, order, sizes, metadata);
  std::string length;
  append_little_endian(length, static_cast<std::uint64_t>(header.size()));
  file.write(length);
  file.write(header);
  for (const std::size_t i : order) file.write(checked_bytes(bytes_of, i, sizes[i]));
}

}  // namespace self_attention::io
