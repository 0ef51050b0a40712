#include "io/tensor_source.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "io/checked.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/json_string.h"
#include "io/text.h"

namespace self_attention::io {

std::vector<std::uint64_t> checked_sizes(const OutputFile& file,
                                         std::span<const TensorDescription> tensors) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::string_view> names;
  for (const TensorDescription& tensor : tensors) {
    const auto size = tensor_bytes(tensor.shape, element_size(tensor.type));
    if (!size) {
      throw FormatError(formatted("{}: tensor {}: shape {} exceeds 64 bits", file.path(),
                                  in_quotes(tensor.name), shape_text(tensor.shape)));
    }
    if (!json_string(tensor.name)) {
      throw FormatError(
          formatted("{}: expected names in UTF-8, got {}", file.path(), in_quotes(tensor.name)));
    }
    sizes.push_back(*size);
    names.push_back(tensor.name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    throw FormatError(formatted("{}: expected tensors of different names, got {} twice",
                                file.path(), in_quotes(*twice)));
  }
  return sizes;
}

std::span<const std::byte> checked_bytes(const TensorBytes& bytes_of, std::size_t index,
                                         std::uint64_t expected) {
  const std::span<const std::byte> bytes = bytes_of(index);
  if (bytes.size() != expected) {
    throw std::logic_error(
        formatted("tensor {}: expected {} bytes to write, got {}", index, expected, bytes.size()));
  }
  return bytes;
}

}  // namespace self_attention::io
