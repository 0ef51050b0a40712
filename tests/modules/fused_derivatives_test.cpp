// Derivatives beyond the first of modules with Backend::Fused, beside those of Eager in float64.

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "support/all_modules.h"
#include "support/ops_seen.h"
#include "support/transforms.h"

namespace self_attention {
namespace {

using testing::OpsSeen;
using torch::Tensor;

constexpr int64_t kEmbed = 12;
constexpr int64_t kHeads = 3;

/// Whether the fused kernel ran, and not the formula.
bool ran_fused(const OpsSeen& seen) {
  return seen.count("aten::softmax") == 0 &&
         (seen.count("self_attention::_attention_with_sums") > 0 ||
          seen.count("self_attention::_checked_attention") > 0);
}

template <typename Holder>
Holder make(Backend backend, torch::ScalarType dtype) {
  torch::manual_seed(0);
  using Options = decltype(std::declval<Holder>()->options);
  Holder module(Options(kEmbed, kHeads).backend(backend).is_causal(true));
  // Rounded as the other one's: the same numbers in both.
  module->to(dtype);
  if (backend == Backend::Eager) module->to(torch::kFloat64);
  return module;
}

/// One query of the second sequence keeps no key.
Tensor uneven_mask(int64_t key_length) {
  torch::manual_seed(2);
  Tensor mask = torch::rand({2, 1, 5, key_length}) > 0.4;
  mask[1][0][2].fill_(false);
  return mask;
}

/// Normal numbers that `rounded` has, in the dtype of `like`.
Tensor normal_like(const Tensor& like, torch::ScalarType rounded) {
  return torch::randn(like.sizes()).to(rounded).to(like.scalar_type());
}

/// Values, keys and query, then the module's parameters.
template <typename Holder>
std::vector<Tensor> sources_of(const Holder& module, torch::ScalarType rounded) {
  torch::manual_seed(1);
  std::vector<Tensor> sources = module->parameters();
  for (const int64_t length : {5, 7, 7}) {
    const Tensor like = torch::empty({2, length, kEmbed}, sources.back().scalar_type());
    sources.insert(sources.begin(), normal_like(like, rounded));
  }
  return sources;
}

/// Second derivatives by the chosen sources along fixed directions. `fused` tells whether the
/// forward pass was.
template <typename Holder>
std::vector<Tensor> second_derivatives(Holder module, torch::ScalarType rounded,
                                       const std::set<std::size_t>& chosen, bool& fused) {
  std::vector<Tensor> sources = sources_of(module, rounded);
  std::vector<Tensor> leaves;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sources[i].requires_grad_(chosen.contains(i));
    if (chosen.contains(i)) leaves.push_back(sources[i]);
  }
  Tensor loss;
  {
    const OpsSeen seen;
    loss = module->forward(sources[0], sources[1], sources[2], uneven_mask(7)).square().sum();
    fused = ran_fused(seen);
  }
  const auto first = torch::autograd::grad({loss}, leaves, {}, {}, /*create_graph=*/true);
  Tensor along = torch::zeros({}, loss.options());
  for (const Tensor& gradient : first) {
    along = along + (gradient * normal_like(gradient, rounded)).sum();
  }
  return torch::autograd::grad({along}, leaves);
}

/// In units of the largest of what is right.
double largest_error(const std::vector<Tensor>& results, const std::vector<Tensor>& right,
                     double least_scale = 0) {
  double error = 0;
  double scale = least_scale;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const Tensor difference = (results.at(i).to(torch::kFloat64) - right[i]).abs();
    error = std::max(error, difference.nan_to_num(INFINITY).max().item<double>());
    scale = std::max(scale, right[i].abs().max().item<double>());
  }
  return error / scale;
}

struct Precision {
  torch::ScalarType dtype;
  double bound;
};
const std::vector<Precision> kPrecisions = {{torch::kFloat32, 1e-5}, {torch::kBFloat16, 0.05}};

template <typename Holder>
class FusedDerivatives : public ::testing::Test {};
TYPED_TEST_SUITE(FusedDerivatives, testing::AllModules, testing::ModuleNames);

TYPED_TEST(FusedDerivatives, OfSecondOrderFollowAFusedForward) {
  for (const auto& [dtype, bound] : kPrecisions) {
    const auto module = make<TypeParam>(Backend::Fused, dtype);
    const auto eager = make<TypeParam>(Backend::Eager, dtype);
    std::vector<std::set<std::size_t>> choices(1);
    for (std::size_t i = 0; i < sources_of(module, dtype).size(); ++i) {
      choices[0].insert(i);
      choices.push_back({i});
    }
    for (const auto& chosen : choices) {
      SCOPED_TRACE(c10::str(dtype, ", ", chosen.size(), " from ", *chosen.begin()));
      bool fused = true;
      const auto right = second_derivatives(eager, dtype, chosen, fused);
      EXPECT_FALSE(fused);
      const auto results = second_derivatives(module, dtype, chosen, fused);
      EXPECT_TRUE(fused);
      // By a bias of the keys alone they are 0, and rounding is all there is.
      EXPECT_LE(largest_error(results, right, 1), bound);
    }
  }
}

TYPED_TEST(FusedDerivatives, InForwardModeAndUnderVmapAreRight) {
  const torch::NoGradGuard no_grad;
  for (const auto& [dtype, bound] : kPrecisions) {
    const auto run = [dtype = dtype](Backend backend) {
      return [module = make<TypeParam>(backend, dtype), mask = uneven_mask(5)](
                 const Tensor& x) mutable { return module->forward(x, x, x, mask); };
    };
    torch::manual_seed(1);
    const Tensor samples = torch::randn({3, 2, 5, kEmbed}).to(dtype);
    const Tensor direction = torch::randn({2, 5, kEmbed}).to(dtype);
    const Tensor wide = samples.to(torch::kFloat64);
    auto fused = run(Backend::Fused);
    auto eager = run(Backend::Eager);
    const Tensor derivative = testing::forward_derivative(fused, samples[0], direction);
    EXPECT_EQ(derivative.scalar_type(), dtype);
    EXPECT_LE(largest_error({derivative}, {testing::forward_derivative(
                                              eager, wide[0], direction.to(torch::kFloat64))}),
              bound);
    EXPECT_LE(largest_error({testing::mapped(fused, samples)}, {testing::mapped(eager, wide)}),
              bound);
  }
}

TYPED_TEST(FusedDerivatives, LeaveLaterCallsFused) {
  const torch::NoGradGuard no_grad;
  auto module = make<TypeParam>(Backend::Fused, torch::kFloat32);
  const auto run = [&](const Tensor& x) { return module->forward(x, x, x); };
  testing::mapped(run, torch::randn({3, 2, 5, kEmbed}));
  const Tensor x = torch::randn({2, 5, kEmbed});
  testing::forward_derivative(run, x, x);
  const OpsSeen seen;
  run(x);
  EXPECT_TRUE(ran_fused(seen));
}

}  // namespace
}  // namespace self_attention
