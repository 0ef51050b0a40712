#pragma once

#include <gtest/gtest.h>
#include <self_attention/self_attention.h>

#include <string>
#include <type_traits>

namespace self_attention::testing {

/// For typed tests, which hold for each of the modules.
using AllModules =
    ::testing::Types<SharedProjectionAttention, FullProjectionAttention, InferredLengthAttention>;

template <typename Holder>
constexpr bool kIsFull = std::is_same_v<Holder, FullProjectionAttention>;

struct ModuleNames {
  template <typename Holder>
  static std::string GetName(int /*index*/) {
    if (kIsFull<Holder>) return "FullProjection";
    return std::is_same_v<Holder, SharedProjectionAttention> ? "SharedProjection"
                                                             : "InferredLength";
  }
};

}  // namespace self_attention::testing
