// Gradients of attention(), beside those of the formula.

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <limits>
#include <utility>
#include <vector>

#include "op/attention_inputs.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::Inputs;
using testing::make_inputs;
using testing::near;
using testing::run;

/// Query, key and value to differentiate by.
std::vector<torch::Tensor> leaves_of(const Inputs& inputs,
                                     torch::ScalarType type = torch::kFloat32) {
  std::vector<torch::Tensor> leaves;
  for (const auto& tensor : {inputs.query, inputs.key, inputs.value}) {
    leaves.push_back(tensor.to(type).detach().clone().requires_grad_());
  }
  return leaves;
}

TEST(AttentionGradients, AreThoseOfTheFormula) {
  for (const bool causal : {false, true}) {
    const Inputs inputs = make_inputs(5, 7);
    const auto mask = torch::rand({2, 1, 1, 7}) > 0.3;
    const auto gradients = [&](torch::ScalarType type) {
      const auto leaves = leaves_of(inputs, type);
      const auto output = run({leaves[0], leaves[1], leaves[2]}, mask, causal);
      const auto first =
          torch::autograd::grad({output.square().sum()}, leaves, {}, true, /*create_graph=*/true);
      auto second = torch::autograd::grad({first[0].sum() + first[2].sum()}, leaves);
      second.insert(second.end(), first.begin(), first.end());
      return second;
    };
    const auto actual = gradients(torch::kFloat32);
    const auto right = gradients(torch::kFloat64);
    for (std::size_t i = 0; i < right.size(); ++i) {
      EXPECT_TRUE(near(actual[i], right[i], 2e-5)) << "gradient " << i;
    }
  }
}

TEST(AttentionGradients, OfSomeInputsOnly) {
  const Inputs inputs = make_inputs(5, 7);
  const auto gradients = [&](unsigned wanted) {
    std::vector<torch::Tensor> leaves;
    for (const auto& tensor : {inputs.query, inputs.key, inputs.value}) {
      leaves.push_back(tensor.detach().requires_grad_(((wanted >> leaves.size()) & 1) != 0));
    }
    run({leaves[0], leaves[1], leaves[2]}).square().sum().backward();
    return leaves;
  };
  const auto all = gradients(7);
  for (unsigned wanted = 1; wanted < 7; ++wanted) {
    const auto some = gradients(wanted);
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(some[i].grad().defined(), ((wanted >> i) & 1) != 0) << wanted << " " << i;
      if (!some[i].grad().defined()) continue;
      EXPECT_TRUE(bit_equal(some[i].grad(), all[i].grad())) << wanted << " " << i;
    }
  }
}

/// Scores far below that of a masked key: the masked keys share the weights.
TEST(AttentionGradients, WhereMaskedKeysWin) {
  const auto query = torch::full({1, 1, 6, 1}, 1e10F);
  const auto key = torch::full({1, 1, 5, 1}, -3e10F);
  const auto value = torch::randn({1, 1, 5, 3});
  const auto padding = torch::tensor({1, 1, 0, 1, 0});
  for (const auto& mask : {padding, padding.expand({6, 5}).contiguous()}) {
    const auto gradients = [&](torch::ScalarType type) {
      const auto leaves = leaves_of({query, key, value}, type);
      run({leaves[0], leaves[1], leaves[2]}, mask).square().sum().backward();
      return leaves;
    };
    const auto actual = gradients(torch::kFloat32);
    const auto right = gradients(torch::kFloat64);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(near(actual[i].grad(), right[i].grad(), 1e-5)) << "gradient " << i;
    }
    EXPECT_GT(actual[2].grad()[0][0][2].abs().max().item<float>(), 0);
  }
}

TEST(AttentionGradients, AQueryOfNaNLeavesHiddenKeysWithoutAny) {
  const Inputs inputs = make_inputs(5, 7);
  const auto leaves = leaves_of(inputs);
  leaves[0].detach().select(2, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  run({leaves[0], leaves[1], leaves[2]}, torch::tensor({1, 1, 0, 1, 1, 1, 0})).sum().backward();
  for (const auto& leaf : {leaves[1], leaves[2]}) {
    EXPECT_TRUE(leaf.grad().select(2, 0).isnan().any().item<bool>());
    EXPECT_EQ(leaf.grad().select(2, 2).abs().max().item<float>(), 0);
  }
}

TEST(AttentionGradients, OfNothingAreZeros) {
  for (const auto& [queries, keys] : {std::pair{0, 4}, {3, 0}}) {
    Inputs inputs = make_inputs(queries, keys);
    for (torch::Tensor* tensor : {&inputs.query, &inputs.key, &inputs.value}) {
      *tensor = tensor->detach().requires_grad_();
    }
    run(inputs).sum().backward();
    for (const auto& tensor : {inputs.query, inputs.key, inputs.value}) {
      EXPECT_TRUE(bit_equal(tensor.grad(), torch::zeros_like(tensor))) << queries << " " << keys;
    }
  }
}

}  // namespace
}  // namespace self_attention
