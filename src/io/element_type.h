#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace self_attention::io {

/// Element types that tensor files hold and LibTorch can represent.
enum class ElementType : std::uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

/// Bytes of one element.
std::size_t element_size(ElementType type);

/// The name PyTorch gives the type: "bool", "uint8", "float32", "bfloat16", ...
std::string_view element_name(ElementType type);

/// The type of that PyTorch name; nothing for a name that is not in the list above.
std::optional<ElementType> element_type_from_name(std::string_view name);

}  // namespace self_attention::io
