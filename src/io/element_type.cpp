#include "io/element_type.h"

#include <array>

namespace self_attention::io {
namespace {

struct ElementTraits {
  std::string_view name;
  std::size_t size;
};

// In the order of the enumeration.
constexpr std::array<ElementTraits, 10> kTraits = {{
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
}};

}  // namespace

std::size_t element_size(ElementType type) {
  return kTraits.at(static_cast<std::size_t>(type)).size;
}

std::string_view element_name(ElementType type) {
  return kTraits.at(static_cast<std::size_t>(type)).name;
}

std::optional<ElementType> element_type_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].name == name) return static_cast<ElementType>(i);
  }
  return std::nullopt;
}

}  // namespace self_attention::io
