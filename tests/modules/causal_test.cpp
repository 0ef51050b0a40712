// is_causal as an option of the modules, under each backend.

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "support/identity_modules.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::near;

/// A module of kind Holder, with options (8, 2) but for those two.
template <typename Holder>
Holder make(Backend backend, bool is_causal) {
  torch::manual_seed(0);
  using Options = decltype(std::declval<Holder>()->options);
  return Holder(Options(8, 2).backend(backend).is_causal(is_causal));
}

template <typename Holder>
void check(Backend backend) {
  const torch::NoGradGuard no_grad;
  auto causal = make<Holder>(backend, true);
  auto plain = make<Holder>(Backend::Eager, false);
  const auto keys = torch::randn({2, 7, 8});
  const auto values = torch::randn({2, 7, 8});
  const auto query = torch::randn({2, 5, 8});
  const auto triangle = causal_mask(5, 7);
  EXPECT_TRUE(near(causal->forward(values, keys, query),
                   plain->forward(values, keys, query, triangle), 1e-6));
  const auto padding = mask_from_lengths(torch::tensor({3, 6}), 7);
  EXPECT_TRUE(near(causal->forward(values, keys, query, padding),
                   plain->forward(values, keys, query, padding.logical_and(triangle)), 1e-6));
  // What causality leaves to the first query the mask takes: even attention, to all keys.
  const auto without_first = torch::tensor({0, 1, 1, 1, 1, 1, 1});
  EXPECT_TRUE(near(causal->forward(values, keys, query, without_first).slice(1, 0, 1),
                   plain->forward(values, keys, query, torch::zeros({1})).slice(1, 0, 1), 1e-6));
}

class IsCausal : public ::testing::TestWithParam<Backend> {};

TEST_P(IsCausal, IsTheTriangleTogetherWithTheMask) {
  check<SharedProjectionAttention>(GetParam());
  check<FullProjectionAttention>(GetParam());
  check<InferredLengthAttention>(GetParam());
}

std::string backend_text(const ::testing::TestParamInfo<Backend>& info) {
  if (info.param == Backend::Auto) return "Auto";
  return info.param == Backend::Eager ? "Eager" : "Fused";
}

INSTANTIATE_TEST_SUITE_P(All, IsCausal,
                         ::testing::Values(Backend::Eager, Backend::Auto, Backend::Fused),
                         backend_text);

TEST(IsCausalModule, EagerIsTheOriginalWithThatMaskToTheBit) {
  const auto x = torch::randn({2, 6, 8});
  EXPECT_TRUE(bit_equal(
      make<SharedProjectionAttention>(Backend::Eager, true)->forward(x, x, x),
      make<SharedProjectionAttention>(Backend::Eager, false)->forward(x, x, x, causal_mask(6, 6))));
}

TEST(IsCausalModule, IsPrintedWhereItIsOn) {
  std::ostringstream text;
  make<FullProjectionAttention>(Backend::Auto, true)->pretty_print(text);
  EXPECT_EQ(text.str(),
            "self_attention::FullProjectionAttention(embed_dim=8, num_heads=2, is_causal=true)");
}

}  // namespace
}  // namespace self_attention
