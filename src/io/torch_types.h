#pragma once

#include <torch/types.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "io/element_type.h"

namespace self_attention::io {

/// Element types in their order and LibTorch's names for them.
inline constexpr std::array<std::pair<ElementType, torch::ScalarType>, 10> kScalarTypes = {{
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

/// LibTorch's name of an element type.
inline torch::ScalarType scalar_type(ElementType type) {
  return kScalarTypes.at(static_cast<std::size_t>(type)).second;
}

/// The element type of a tensor's dtype; nothing for the dtypes that files here do not hold.
inline std::optional<ElementType> element_type(torch::ScalarType type) {
  for (const auto& [element, scalar] : kScalarTypes) {
    if (scalar == type) return element;
  }
  return std::nullopt;
}

}  // namespace self_attention::io
