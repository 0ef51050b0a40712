#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "io/element_type.h"

namespace self_attention::io {

inline constexpr std::uint64_t kLongestSafetensorsHeader = 100'000'000;

/// The format's own names.
inline constexpr std::array<std::pair<std::string_view, ElementType>, 10> kSafetensorsTypes = {{
    {"BOOL", ElementType::kBool},
    {"U8", ElementType::kUInt8},
    {"I8", ElementType::kInt8},
    {"I16", ElementType::kInt16},
    {"I32", ElementType::kInt32},
    {"I64", ElementType::kInt64},
    {"F16", ElementType::kFloat16},
    {"BF16", ElementType::kBFloat16},
    {"F32", ElementType::kFloat32},
    {"F64", ElementType::kFloat64},
}};

inline std::optional<ElementType> safetensors_type(std::string_view name) {
  for (const auto& [known, type] : kSafetensorsTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

inline std::string_view safetensors_name(ElementType type) {
  return std::ranges::find(kSafetensorsTypes, type, [](auto& pair) { return pair.second; })->first;
}

}  // namespace self_attention::io
