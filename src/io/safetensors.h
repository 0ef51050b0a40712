#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/element_type.h"
#include "io/input_file.h"

namespace self_attention::io {

/// One tensor of a safetensors file: contiguous, row-major, little-endian.
struct SafetensorsEntry {
  std::string name;
  ElementType type;
  std::vector<std::int64_t> shape;
  std::uint64_t offset;  ///< bytes from the start of the file
  std::uint64_t bytes;   ///< element_size(type) times the product of shape
};

/// A tensor of a type that ElementType does not name, such as F8_E4M3.
struct SafetensorsUnsupported {
  std::string name;
  std::string dtype;
};

/// The verified header of a safetensors file: entries in the order of their data.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsUnsupported> unsupported;  ///< empty unless asked for
  std::vector<std::size_t> by_name;                 ///< indices into entries, sorted by name

  /// The entry of that name, or nullptr.
  const SafetensorsEntry* find(const std::string& name) const;
};

enum class UnsupportedTypes { kRefuse, kList };

/// Reads and verifies the header (format: https://github.com/huggingface/safetensors).
///
/// Refuses with FormatError: a header over 100 MB or beyond the file's end, JSON that is not one
/// flat object of tensors, duplicate names, unknown or unsupported dtypes (kList: put into
/// `unsupported` instead), sizes that overflow, ranges that do not match dtype and shape, that
/// overlap, leave holes or do not end with the file.
SafetensorsHeader read_safetensors_header(const InputFile& file,
                                          UnsupportedTypes policy = UnsupportedTypes::kRefuse);

}  // namespace self_attention::io
