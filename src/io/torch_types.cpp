#include "io/torch_types.h"

#include <array>
#include <utility>

namespace self_attention::io {
namespace {

constexpr std::array<std::pair<ElementType, torch::ScalarType>, 10> kTypes = {{
    {ElementType::kBool, torch::kBool},
    {ElementType::kUInt8, torch::kUInt8},
    {ElementType::kInt8, torch::kInt8},
    {ElementType::kInt16, torch::kInt16},
    {ElementType::kInt32, torch::kInt32},
    {ElementType::kInt64, torch::kInt64},
    {ElementType::kFloat16, torch::kFloat16},
    {ElementType::kBFloat16, torch::kBFloat16},
    {ElementType::kFloat32, torch::kFloat32},
    {ElementType::kFloat64, torch::kFloat64},
}};

}  // namespace

torch::ScalarType scalar_type(ElementType type) {
  return kTypes.at(static_cast<std::size_t>(type)).second;
}

std::optional<ElementType> element_type(torch::ScalarType type) {
  for (const auto& [element, scalar] : kTypes) {
    if (scalar == type) return element;
  }
  return std::nullopt;
}

}  // namespace self_attention::io
