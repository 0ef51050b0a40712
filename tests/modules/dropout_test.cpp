// dropout as an option of the modules, under each backend.

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <limits>
#include <sstream>
#include <string>

#include "support/all_modules.h"
#include "support/temporary_folder.h"
#include "support/tensor_matchers.h"
#include "support/use_target.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::near;
using testing::throws;

constexpr double kShare = 0.4;

template <typename Holder>
class Dropout : public ::testing::Test {
 protected:
  using Options = decltype(std::declval<Holder>()->options);

  static Holder make(Backend backend, double share = kShare) {
    torch::manual_seed(0);
    return Holder(Options(8, 2).backend(backend).dropout(share));
  }

  /// The output under that seed, then the gradients of inputs and parameters.
  static std::vector<torch::Tensor> run(Holder module, torch::ScalarType type, int64_t queries,
                                        const torch::Tensor& mask) {
    torch::manual_seed(1);
    const auto values = torch::randn({2, 40, 8}).to(type).requires_grad_();
    const auto keys = torch::randn({2, 40, 8}).to(type).requires_grad_();
    const auto query = torch::randn({2, queries, 8}).to(type).requires_grad_();
    module->to(type);
    torch::manual_seed(7);
    std::vector<torch::Tensor> found = {module->forward(values, keys, query, mask)};
    std::vector<torch::Tensor> leaves = module->parameters();
    leaves.insert(leaves.end(), {values, keys, query});
    if (torch::GradMode::is_enabled()) {
      const auto loss = found[0].to(torch::kFloat32).square().sum();
      for (const auto& gradient : torch::autograd::grad({loss}, leaves)) found.push_back(gradient);
    }
    return found;
  }
};

TYPED_TEST_SUITE(Dropout, testing::AllModules, testing::ModuleNames);

TYPED_TEST(Dropout, DropsInTrainingModeAlone) {
  const auto x = torch::randn({2, 9, 8});
  for (const Backend backend : {Backend::Eager, Backend::Fused}) {
    auto module = this->make(backend);
    const auto plain = this->make(backend, 0)->forward(x, x, x);
    EXPECT_FALSE(near(module->forward(x, x, x), plain, 1e-2));
    module->eval();
    EXPECT_TRUE(bit_equal(module->forward(x, x, x), plain));
  }
}

TYPED_TEST(Dropout, FollowsTheSeedAndDrawsNothingWithoutNeed) {
  const auto x = torch::randn({2, 9, 8});
  const auto state = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  for (const Backend backend : {Backend::Eager, Backend::Fused}) {
    auto module = this->make(backend);
    torch::manual_seed(5);
    const auto first = module->forward(x, x, x);
    EXPECT_FALSE(bit_equal(module->forward(x, x, x), first));
    torch::manual_seed(5);
    EXPECT_TRUE(bit_equal(module->forward(x, x, x), first));
    const auto before = state();
    module->eval();
    module->forward(x, x, x);
    EXPECT_TRUE(torch::equal(state(), before));
  }
}

TYPED_TEST(Dropout, DropsTheSameUnderEveryBackend) {
  // The last row keeps nothing.
  const auto mask =
      (torch::rand({2, 1, 6, 40}) > 0.3).logical_and(torch::arange(6).view({6, 1}) < 5);
  for (const bool records : {true, false}) {
    const torch::AutoGradMode grad_mode(records);
    for (const int64_t queries : {1, 6}) {
      for (const bool masked : {false, true}) {
        const auto used = masked ? mask.slice(2, 6 - queries) : torch::Tensor();
        const auto eager = this->run(this->make(Backend::Eager), torch::kFloat32, queries, used);
        const auto fused = this->run(this->make(Backend::Fused), torch::kFloat32, queries, used);
        ASSERT_EQ(eager.size(), fused.size());
        for (std::size_t i = 0; i < eager.size(); ++i) {
          EXPECT_TRUE(near(fused[i], eager[i], 1e-4)) << i << " of " << queries << " queries";
        }
      }
    }
  }
}

TYPED_TEST(Dropout, WorksInSixteenBits) {
  for (const auto type : {torch::kBFloat16, torch::kFloat16}) {
    const auto exact = this->run(this->make(Backend::Eager), torch::kFloat64, 6, {});
    const double allowed = type == torch::kBFloat16 ? 4e-2 : 5e-3;
    EXPECT_TRUE(near(this->run(this->make(Backend::Eager), type, 6, {})[0], exact[0], allowed));
    EXPECT_TRUE(near(this->run(this->make(Backend::Fused), type, 6, {})[0], exact[0], allowed));
  }
}

TYPED_TEST(Dropout, OfEverythingLeavesTheOutputsBias) {
  const auto x = torch::randn({2, 9, 8});
  for (const Backend backend : {Backend::Eager, Backend::Fused}) {
    auto module = this->make(backend, 1);
    EXPECT_TRUE(bit_equal(module->forward(x, x, x),
                          module->parameters().back().expand({2, 9, 8}).contiguous()));
  }
}

TYPED_TEST(Dropout, IsFromZeroToOne) {
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(throws<c10::ValueError>([&] { this->make(Backend::Auto, share); },
                                        {"dropout: expected a number from 0 to 1, got "}));
  }
  auto module = this->make(Backend::Auto);
  module->options.dropout(2);
  const auto x = torch::randn({1, 2, 8});
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(x, x, x); },
                                      {"dropout_p: expected a number from 0 to 1, got 2"}));
}

TYPED_TEST(Dropout, IsPrintedWhereItIsOn) {
  std::ostringstream text;
  this->make(Backend::Auto)->pretty_print(text);
  EXPECT_TRUE(text.str().ends_with("=2, dropout=0.4)")) << text.str();
}

TYPED_TEST(Dropout, LeavesTheWeightsThatAreShownWhole) {
  const auto x = torch::randn({2, 9, 8});
  auto module = this->make(Backend::Auto);
  torch::manual_seed(5);
  const auto [output, weights] = module->forward_with_weights(x, x, x);
  EXPECT_TRUE(near(weights.sum(-1), torch::ones({2, 9}), 1e-5));
  module->options.backend(Backend::Eager);
  torch::manual_seed(5);
  EXPECT_TRUE(bit_equal(output, module->forward(x, x, x)));
}

TYPED_TEST(Dropout, IsNotInArchives) {
  const io_test::TemporaryFolder folder;
  const std::string file = (folder.path() / "a.pt").string();
  auto module = this->make(Backend::Auto);
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { export_torchscript(*module, file); },
      {"[export_torchscript] module: expected eval mode, as archives drop nothing, got training "
       "mode with dropout=0.4"}));
  module->eval();
  export_torchscript(*module, file);
}

/// Weights that are all 1 / K, read off through values that are the identity.
torch::Tensor dropped_weights(const torch::Tensor& shape, double share) {
  const int64_t length = shape.size(2);
  return attention(torch::zeros_like(shape), torch::zeros_like(shape),
                   torch::eye(length).expand({shape.size(0), shape.size(1), length, length}), {},
                   AttentionOptions(1).dropout_p(share));
}

TEST(DroppedWeights, AreTheirShareAndTheOthersMakeUpForThem) {
  const int64_t length = 400;
  for (const double share : {0.1, 0.5, 0.9}) {
    torch::manual_seed(3);
    const auto weights = dropped_weights(torch::empty({2, 3, length, 8}), share) * length;
    const auto kept = weights > 0;
    const auto count = static_cast<double>(weights.numel());
    const double deviation = std::sqrt(share * (1 - share) / count);
    EXPECT_NEAR(kept.to(torch::kFloat64).mean().item<double>(), 1 - share, 5 * deviation);
    EXPECT_TRUE(near(weights.masked_select(kept),
                     torch::full({kept.sum().item<int64_t>()}, 1 / (1 - share)), 1e-5));
    // Of independent draws, those of rows and of columns vary as their number says.
    for (const int64_t axis : {2, 3}) {
      const double variance = kept.to(torch::kFloat64).sum(axis).var().item<double>();
      EXPECT_NEAR(variance / (static_cast<double>(length) * share * (1 - share)), 1, 0.15);
    }
    // Neighbours have nothing to do with each other.
    const auto centred = kept.to(torch::kFloat64) - (1 - share);
    for (const int64_t axis : {1, 2, 3}) {
      const auto product = centred.slice(axis, 1) * centred.slice(axis, 0, -1);
      const double mean = product.mean().item<double>();
      EXPECT_NEAR(mean, 0,
                  5 * share * (1 - share) / std::sqrt(static_cast<double>(product.numel())));
    }
  }
}

TEST(DroppedWeights, AreTheSameOnEveryTarget) {
  const auto drawn = [] {
    torch::manual_seed(3);
    return dropped_weights(torch::empty({1, 2, 37, 8}), 0.5) > 0;
  };
  const auto expected = drawn();
  for (const auto& name : cpu_targets()) {
    const testing::UseTarget target(name);
    EXPECT_TRUE(torch::equal(drawn(), expected)) << name;
  }
}

}  // namespace
}  // namespace self_attention
