// A module as a torch::nn::Module: parameters, seeds, cloning, saving, containers, threads.

#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "support/identity_modules.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::near;

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) {
    names.push_back(parameter.key());
  }
  return names;
}

const std::vector<std::string> kSharedNames = {"values.weight", "keys.weight", "queries.weight",
                                               "fc_out.weight", "fc_out.bias"};
const std::vector<std::string> kFullNames = {
    "q_linear.weight", "q_linear.bias", "k_linear.weight",      "k_linear.bias",
    "v_linear.weight", "v_linear.bias", "output_linear.weight", "output_linear.bias"};

/// What the three modules have in common, for the tests that hold for each.
struct ModuleKind {
  std::string name;
  std::shared_ptr<torch::nn::Module> (*make)(int64_t embed, int64_t heads);
  torch::Tensor (*forward)(torch::nn::Module& module, const torch::Tensor& x,
                           const torch::Tensor& mask);
  std::vector<std::string> parameters;
  std::string printed;
};

template <typename Holder>
std::shared_ptr<torch::nn::Module> make(int64_t embed, int64_t heads) {
  return Holder(embed, heads).ptr();
}

template <typename Holder>
torch::Tensor self_attend(torch::nn::Module& module, const torch::Tensor& x,
                          const torch::Tensor& mask) {
  return dynamic_cast<typename Holder::Impl&>(module).forward(x, x, x, mask);
}

template <typename Holder>
ModuleKind kind(std::string name, std::vector<std::string> parameters, std::string printed) {
  return {std::move(name), make<Holder>, self_attend<Holder>, std::move(parameters),
          std::move(printed)};
}

class EveryModule : public ::testing::TestWithParam<ModuleKind> {
 protected:
  void SetUp() override { torch::manual_seed(0); }
  torch::Tensor forward(const std::shared_ptr<torch::nn::Module>& module, const torch::Tensor& x,
                        const torch::Tensor& mask = {}) const {
    return GetParam().forward(*module, x, mask);
  }
};

TEST_P(EveryModule, ParametersHavePythonsNamesAndOrder_R02) {
  EXPECT_EQ(parameter_names(*GetParam().make(8, 2)), GetParam().parameters);
}

TEST_P(EveryModule, MovesAndTrains_R28) {
  const auto module = GetParam().make(8, 2);
  ASSERT_EQ(module->parameters().size(), GetParam().parameters.size());
  module->to(torch::kFloat64);
  std::vector<torch::Tensor> before;
  for (const auto& parameter : module->parameters()) {
    ASSERT_TRUE(parameter.defined());
    before.push_back(parameter.detach().clone());
  }
  torch::optim::Adam optimizer(module->parameters(), torch::optim::AdamOptions(0.1));
  const auto x = torch::randn({2, 3, 8}, torch::kFloat64);
  forward(module, x, causal_mask(3, 3)).sum().backward();
  optimizer.step();
  for (std::size_t i = 0; i < before.size(); ++i) {
    // A bias added to every key cancels in the softmax: its gradient is zero but for rounding.
    EXPECT_FALSE(before[i].equal(module->parameters()[i])) << GetParam().parameters[i];
  }
  module->to(torch::kFloat32);
  EXPECT_EQ(forward(module, x.to(torch::kFloat32)).scalar_type(), torch::kFloat32);
}

TEST_P(EveryModule, CloneIsIndependent_R29) {
  const auto module = GetParam().make(8, 2);
  module->to(torch::kFloat64);
  module->eval();
  const auto copy = module->clone();
  ASSERT_NE(copy, nullptr);
  const auto x = torch::randn({2, 3, 8}, torch::kFloat64);
  const auto before = forward(module, x);
  EXPECT_TRUE(bit_equal(forward(copy, x), before));
  EXPECT_EQ(parameter_names(*copy), GetParam().parameters);
  EXPECT_FALSE(copy->is_training());
  for (std::size_t i = 0; i < module->parameters().size(); ++i) {
    EXPECT_NE(copy->parameters()[i].data_ptr(), module->parameters()[i].data_ptr());
  }
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) {
      parameter.zero_();
    }
  }
  EXPECT_TRUE(bit_equal(forward(copy, x), before));
}

TEST_P(EveryModule, SavesAndLoads) {
  const auto module = GetParam().make(8, 2);
  std::stringstream stream;
  torch::serialize::OutputArchive saved;
  module->save(saved);
  saved.save_to(stream);
  const auto other = GetParam().make(8, 2);
  const auto x = torch::randn({2, 3, 8});
  EXPECT_FALSE(near(forward(other, x), forward(module, x), 1e-3));
  torch::serialize::InputArchive loaded;
  loaded.load_from(stream);
  other->load(loaded);
  EXPECT_TRUE(bit_equal(forward(other, x), forward(module, x)));
}

TEST_P(EveryModule, ResetParametersDrawsAsTheConstructorDoes) {
  torch::manual_seed(7);
  const auto made = GetParam().make(8, 2);
  const auto redrawn = GetParam().make(8, 2);
  torch::manual_seed(7);
  if (auto* shared = redrawn->as<SharedProjectionAttention>()) {
    shared->reset_parameters();
  } else if (auto* full = redrawn->as<FullProjectionAttention>()) {
    full->reset_parameters();
  } else {
    redrawn->as<InferredLengthAttention>()->reset_parameters();
  }
  for (std::size_t i = 0; i < made->parameters().size(); ++i) {
    EXPECT_TRUE(bit_equal(redrawn->parameters()[i], made->parameters()[i]));
  }
}

TEST_P(EveryModule, PrintsItsOptions) {
  std::ostringstream stream;
  GetParam().make(8, 2)->pretty_print(stream);
  EXPECT_EQ(stream.str(), GetParam().printed);
}

TEST_P(EveryModule, KeepsNothingBetweenCalls_R60) {
  const auto module = GetParam().make(8, 2);
  const auto x = torch::randn({2, 9, 8});
  const auto mask = causal_mask(9, 9);
  const int threads_before = torch::get_num_threads();
  torch::set_num_threads(1);
  const torch::NoGradGuard no_grad_here;
  const auto expected = forward(module, x, mask);
  std::vector<int> equal(8, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int call = 0; call < 100; ++call) {
        // A call without a mask in between: none of it may be left for the next.
        forward(module, x.narrow(1, 0, 4));
        count += forward(module, x, mask).equal(expected) ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  torch::set_num_threads(threads_before);
  EXPECT_EQ(equal, std::vector<int>(8, 100));
}

TEST_P(EveryModule, GradientGuardsAreTheThreadsOwn_R37) {
  const auto module = GetParam().make(8, 2);
  const auto x = torch::randn({1, 3, 8});
  const torch::NoGradGuard no_grad;
  bool recorded = false;
  std::thread([&] { recorded = forward(module, x).requires_grad(); }).join();
  EXPECT_TRUE(recorded);
  EXPECT_FALSE(forward(module, x).requires_grad());
}

/// The derivative of sum(f(x) * weights) by central differences, in double.
template <typename Function>
torch::Tensor numerical_gradient(Function f, const torch::Tensor& x, const torch::Tensor& weights) {
  constexpr double kStep = 1e-6;
  auto gradient = torch::zeros_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    auto step = torch::zeros_like(x);
    step.view(-1)[i] = kStep;
    gradient.view(-1)[i] = ((f(x + step) - f(x - step)) * weights).sum() / (2 * kStep);
  }
  return gradient;
}

TEST_P(EveryModule, FirstAndSecondDerivativesAreRight_R57_R66) {
  const auto module = GetParam().make(4, 2);
  module->to(torch::kFloat64);
  const auto mask = causal_mask(3, 3);
  const auto x = torch::randn({1, 3, 4}, torch::kFloat64);
  const auto weights = torch::randn({1, 3, 4}, torch::kFloat64);
  const auto value = [&](const torch::Tensor& at) { return forward(module, at, mask).detach(); };
  const auto gradient = [&](const torch::Tensor& at, bool keep_graph) {
    const auto leaf = keep_graph ? at : at.detach().requires_grad_();
    return torch::autograd::grad({forward(module, leaf, mask)}, {leaf}, {weights},
                                 /*retain_graph=*/keep_graph, /*create_graph=*/keep_graph)[0];
  };
  EXPECT_TRUE(near(gradient(x, false), numerical_gradient(value, x, weights), 1e-8));

  const auto leaf = x.clone().requires_grad_();
  const auto direction = torch::randn({1, 3, 4}, torch::kFloat64);
  const auto second = torch::autograd::grad({gradient(leaf, true)}, {leaf}, {direction})[0];
  const auto first = [&](const torch::Tensor& at) { return gradient(at, false).detach(); };
  EXPECT_TRUE(near(second, numerical_gradient(first, x, direction), 1e-7));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryModule,
    ::testing::Values(kind<SharedProjectionAttention>(
                          "SharedProjection", kSharedNames,
                          "self_attention::SharedProjectionAttention(embed_size=8, heads=2)"),
                      kind<FullProjectionAttention>(
                          "FullProjection", kFullNames,
                          "self_attention::FullProjectionAttention(embed_dim=8, num_heads=2)"),
                      kind<InferredLengthAttention>(
                          "InferredLength", kSharedNames,
                          "self_attention::InferredLengthAttention(embed_size=8, heads=2)")),
    [](const auto& info) { return info.param.name; });

TEST(SharedProjection, HeadsShareOneMatrix_R02) {
  torch::manual_seed(0);
  SharedProjectionAttention module(8, 2);
  int64_t scalars = 0;
  for (const auto& parameter : module->parameters()) {
    scalars += parameter.numel();
  }
  EXPECT_EQ(scalars, 120);
  const auto x = torch::randn({1, 3, 8});
  const auto block = torch::block_diag({module->values->weight, module->values->weight});
  // One key is attended to whatever its score, so the output is its projected value alone.
  const auto single = x.narrow(1, 0, 1);
  EXPECT_TRUE(near(module->forward(single, single, x),
                   module->fc_out->forward(torch::linear(single, block)).expand({1, 3, 8}), 1e-6));
}

TEST(FullProjection, CountsItsParameters_R02) {
  int64_t scalars = 0;
  for (const auto& parameter : FullProjectionAttention(8, 1)->parameters()) {
    scalars += parameter.numel();
  }
  EXPECT_EQ(scalars, 288);
}

TEST(InitialWeights, EqualPythonsUnderTheSameSeed_R36) {
  torch::manual_seed(0);
  SharedProjectionAttention shared(8, 2);
  EXPECT_TRUE(near(shared->values->weight[0],
                   torch::tensor({-0.003743, 0.268222, -0.411523, -0.367970}), 1e-6));
  EXPECT_NEAR(shared->fc_out->bias[0].item<double>(), -0.215151, 1e-6);
  double sum = 0;
  for (const auto& parameter : shared->parameters()) {
    sum += parameter.to(torch::kFloat64).sum().item<double>();
  }
  EXPECT_NEAR(sum, -1.797072, 1e-6);
  torch::manual_seed(0);
  InferredLengthAttention inferred(8, 2);
  EXPECT_TRUE(bit_equal(inferred->fc_out->weight, shared->fc_out->weight));
  torch::manual_seed(0);
  FullProjectionAttention full(8, 1);
  EXPECT_TRUE(near(full->q_linear->weight[0].narrow(0, 0, 4),
                   torch::tensor({-0.002647, 0.189661, -0.290990, -0.260194}), 1e-6));
  EXPECT_NEAR(full->output_linear->bias[0].item<double>(), 0.011264, 1e-6);
}

TEST(Clone, ItsMembersAreItsOwnChildren_R29) {
  SharedProjectionAttention module(8, 2);
  const auto copy = std::dynamic_pointer_cast<SharedProjectionAttentionImpl>(module->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->children()[3].get(), copy->fc_out.get());
  EXPECT_NE(copy->fc_out.get(), module->fc_out.get());
}

TEST(Containers, DefaultArgumentsWorkInAnyModule_R34) {
  SharedProjectionAttention shared(8, 2);
  InferredLengthAttention inferred(8, 2);
  FullProjectionAttention full(8, 2);
  const auto x = torch::randn({2, 3, 8});
  const auto mask = causal_mask(3, 3);
  torch::nn::AnyModule any_shared(shared);
  EXPECT_TRUE(bit_equal(any_shared.forward(x, x, x), shared->forward(x, x, x)));
  EXPECT_TRUE(bit_equal(any_shared.forward(x, x, x, mask), shared->forward(x, x, x, mask)));
  torch::nn::AnyModule any_inferred(inferred);
  EXPECT_TRUE(bit_equal(any_inferred.forward(x, x, x), inferred->forward(x, x, x)));
  EXPECT_TRUE(bit_equal(any_inferred.forward(x, x, x, mask), inferred->forward(x, x, x, mask)));
  torch::nn::AnyModule any_full(full);
  EXPECT_TRUE(bit_equal(any_full.forward(x), full->forward(x)));
  EXPECT_TRUE(bit_equal(any_full.forward(x, x, x), full->forward(x, x, x)));
  EXPECT_TRUE(bit_equal(any_full.forward(x, x, x, mask), full->forward(x, x, x, mask)));
}

TEST(Containers, SequentialTakesThem_R34) {
  const auto x = torch::randn({2, 3, 8});
  torch::nn::Sequential first(SharedProjectionAttention(8, 2), torch::nn::Linear(8, 4));
  EXPECT_EQ(first->forward(x, x, x).sizes(), (std::vector<int64_t>{2, 3, 4}));
  torch::nn::Sequential inner(torch::nn::Linear(8, 8), FullProjectionAttention(8, 2));
  EXPECT_EQ(inner->forward(x).sizes(), (std::vector<int64_t>{2, 3, 8}));
}

TEST(Holder, EmptyOneThrows_R35) {
  const auto x = torch::randn({1, 3, 8});
  SharedProjectionAttention shared{nullptr};
  FullProjectionAttention full{nullptr};
  InferredLengthAttention inferred{nullptr};
  EXPECT_THROW(shared->forward(x, x, x), c10::Error);
  EXPECT_THROW(full->forward(x), c10::Error);
  EXPECT_THROW(inferred->forward(x, x, x), c10::Error);
  static_assert(!std::is_default_constructible_v<SharedProjectionAttentionImpl>,
                "a default-constructed holder must not compile");
}

}  // namespace
}  // namespace self_attention
