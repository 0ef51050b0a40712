// Fused forwards, whose projections go where they are cheapest, beside the plain equations in
// float64: shapes on every side of the rules, gradients, sixteen bits, how many ops they take, and
// which backend runs them.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/identity_modules.h"
#include "support/ops_seen.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::near;
using testing::OpsSeen;
using testing::throws;

struct Sizes {
  int64_t batch;
  int64_t queries;
  int64_t keys;
  int64_t embed;
  int64_t heads;
};

// Q below, at and above K; one query, few, and more than E in all; no keys, and nothing at all; so
// many queries and keys that the output's weight takes up W_v.
const std::vector<Sizes> kSizes = {{1, 1, 40, 16, 4}, {2, 3, 300, 16, 4},  {2, 7, 5, 16, 2},
                                   {1, 64, 9, 16, 2}, {3, 33, 64, 8, 2},   {2, 40, 3, 64, 2},
                                   {2, 5, 5, 12, 1},  {2, 3, 0, 8, 2},     {2, 0, 3, 8, 2},
                                   {0, 2, 3, 8, 2},   {1, 80, 90, 256, 8}, {2, 130, 140, 128, 2}};

struct Inputs {
  torch::Tensor values;
  torch::Tensor keys;
  torch::Tensor query;
  torch::Tensor mask;
};

/// Inputs with gaps between their rows, or where there is a mask between all numbers. The mask
/// leaves some queries without a key.
Inputs make_inputs(const Sizes& sizes, torch::ScalarType type, bool masked) {
  const auto make = [&](int64_t length) {
    const auto roomy = torch::randn({length, sizes.batch, 2 * sizes.embed}).to(type);
    return (masked ? roomy.slice(2, 0, 2 * sizes.embed, 2) : roomy.slice(2, sizes.embed))
        .transpose(0, 1);
  };
  Inputs inputs = {make(sizes.keys), make(sizes.keys), make(sizes.queries), {}};
  if (masked) {
    inputs.mask = torch::rand({sizes.batch, 1, sizes.queries, sizes.keys}) > 0.4;
    if (sizes.queries > 1) inputs.mask.select(2, 1).fill_(false);
  }
  return inputs;
}

template <typename Holder>
Holder make_module(const Sizes& sizes, torch::ScalarType type) {
  using Options = decltype(std::declval<Holder>()->options);
  torch::manual_seed(0);
  Holder module(Options(sizes.embed, sizes.heads).backend(Backend::Fused));
  module->to(type);
  return module;
}

template <typename Holder>
torch::Tensor forward(Holder& module, const Inputs& inputs) {
  return module->forward(inputs.values, inputs.keys, inputs.query, inputs.mask);
}

Inputs to_double(const Inputs& inputs) {
  const auto wide = [](const torch::Tensor& tensor) {
    return tensor.detach().to(torch::kFloat64).requires_grad_(tensor.requires_grad());
  };
  return {wide(inputs.values), wide(inputs.keys), wide(inputs.query), inputs.mask};
}

/// The same module in float64, operation by operation.
template <typename Holder>
Holder exact(Holder& module) {
  Holder copy(std::dynamic_pointer_cast<typename Holder::Impl>(module->clone()));
  copy->options.backend(Backend::Eager);
  copy->to(torch::kFloat64);
  return copy;
}

double largest(const torch::Tensor& tensor) {
  return tensor.numel() == 0 ? 1 : std::max(1.0, tensor.abs().max().template item<double>());
}

template <typename Holder>
class Folded : public ::testing::Test {
 protected:
  void for_each(const std::function<void(Holder&, const Inputs&)>& check,
                torch::ScalarType type = torch::kFloat32) {
    const bool inferred = std::is_same_v<Holder, InferredLengthAttention>;
    for (const Sizes& sizes : kSizes) {
      if (inferred && sizes.batch == 0) continue;  // refused
      for (const bool masked : {false, true}) {
        SCOPED_TRACE(c10::str("N=", sizes.batch, " Q=", sizes.queries, " K=", sizes.keys,
                              " E=", sizes.embed, " H=", sizes.heads, masked ? " masked" : ""));
        auto module = make_module<Holder>(sizes, type);
        check(module, make_inputs(sizes, type, masked));
      }
    }
  }
};

using Modules =
    ::testing::Types<SharedProjectionAttention, FullProjectionAttention, InferredLengthAttention>;
TYPED_TEST_SUITE(Folded, Modules);

TYPED_TEST(Folded, IsTheEquations) {
  const torch::NoGradGuard no_grad;
  this->for_each([](auto& module, const Inputs& inputs) {
    for (const bool is_causal : {false, true}) {
      module->options.is_causal(is_causal);
      auto right = exact(module);
      const auto expected = forward(right, to_double(inputs));
      EXPECT_TRUE(near(forward(module, inputs), expected, 2e-6 * largest(expected)));
    }
  });
}

TYPED_TEST(Folded, RoundsSixteenBitsOnce) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kBFloat16, torch::kFloat16}) {
    this->for_each(
        [&](auto& module, const Inputs& inputs) {
          auto right = exact(module);
          const auto expected = forward(right, to_double(inputs));
          const auto output = forward(module, inputs);
          EXPECT_EQ(output.scalar_type(), type);
          const double rounding = type == torch::kBFloat16 ? 0x1p-8 : 0x1p-11;
          const auto allowed = expected.abs() * rounding + (2e-6 * largest(expected));
          EXPECT_TRUE(((output - expected).abs() <= allowed).all().template item<bool>());
        },
        type);
  }
}

TYPED_TEST(Folded, HasTheGradientsOfTheEquations) {
  this->for_each([](auto& module, Inputs inputs) {
    for (auto* tensor : {&inputs.values, &inputs.keys, &inputs.query}) tensor->requires_grad_();
    auto right = exact(module);
    const Inputs wide = to_double(inputs);
    forward(module, inputs).square().sum().backward();
    forward(right, wide).square().sum().backward();
    const auto expect_near = [](const torch::Tensor& actual, const torch::Tensor& expected) {
      ASSERT_TRUE(actual.grad().defined());
      EXPECT_TRUE(near(actual.grad(), expected.grad(), 1e-5 * largest(expected.grad())));
    };
    expect_near(inputs.values, wide.values);
    expect_near(inputs.keys, wide.keys);
    expect_near(inputs.query, wide.query);
    for (const auto& parameter : module->named_parameters()) {
      SCOPED_TRACE(parameter.key());
      expect_near(parameter.value(), right->named_parameters()[parameter.key()]);
    }
  });
}

TEST(FoldedFullProjection, HasNoGradientForTheKeysBiasButZeros) {
  auto module = make_module<FullProjectionAttention>({2, 5, 5, 12, 3}, torch::kFloat32);
  module->forward(torch::randn({2, 5, 12})).square().sum().backward();
  EXPECT_TRUE(near(module->k_linear->bias.grad(), torch::zeros({12}), 0));
}

TYPED_TEST(Folded, RecordsForOneParameterAlone) {
  auto module = make_module<TypeParam>({2, 5, 7, 16, 2}, torch::kFloat32);
  for (auto& parameter : module->parameters()) parameter.set_requires_grad(false);
  auto weight = module->named_parameters().begin()->value();
  weight.set_requires_grad(true);
  const Inputs inputs = make_inputs({2, 5, 7, 16, 2}, torch::kFloat32, true);
  auto right = exact(module);
  forward(module, inputs).square().sum().backward();
  forward(right, to_double(inputs)).square().sum().backward();
  EXPECT_TRUE(near(weight.grad(), right->named_parameters().begin()->value().grad(), 1e-5));
}

TYPED_TEST(Folded, KeepsFloat32UnderAutocast) {
  const torch::NoGradGuard no_grad;
  auto module = make_module<TypeParam>({2, 9, 7, 16, 2}, torch::kFloat32);
  const Inputs inputs = make_inputs({2, 9, 7, 16, 2}, torch::kFloat32, true);
  const auto right = forward(module, inputs).to(torch::kBFloat16);
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto output = forward(module, inputs);
  Inputs one_query = {inputs.values, inputs.keys, inputs.query.slice(1, 0, 1), {}};
  const auto mixed = one_query.keys.to(torch::kBFloat16);
  one_query.keys = mixed.to(torch::kFloat32);
  const auto wide = forward(module, one_query);
  one_query.keys = mixed;
  const auto narrow = forward(module, one_query);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(bit_equal(output, right));
  EXPECT_TRUE(bit_equal(narrow, wide));
}

TEST(FoldedInferredLength, IsTheEquationsWhereReshapesMoveElements) {
  const torch::NoGradGuard no_grad;
  for (const auto& [embed, heads] : {std::pair<int64_t, int64_t>{6, 4}, {7, 2}, {5, 3}}) {
    auto module = make_module<InferredLengthAttention>({0, 0, 0, embed, heads}, torch::kFloat32);
    auto right = exact(module);
    const int64_t per_row = heads * (embed / heads);
    const auto x = torch::randn({2, 3 * per_row, embed});
    const auto expected =
        right->forward(x.to(torch::kFloat64), x.to(torch::kFloat64), x.to(torch::kFloat64));
    EXPECT_TRUE(near(module->forward(x, x, x), expected, 1e-6));
  }
}

struct Count {
  Sizes sizes;
  torch::ScalarType type;
  std::size_t ops;
  std::size_t products;
};

template <typename Holder>
void expect_counts(const std::vector<Count>& counts) {
  const torch::NoGradGuard no_grad;
  for (const Count& count : counts) {
    auto module = make_module<Holder>(count.sizes, count.type);
    const auto make = [&](int64_t length) {
      return torch::randn({count.sizes.batch, length, count.sizes.embed}).to(count.type);
    };
    const auto keys = make(count.sizes.keys);
    const Inputs inputs = {keys, keys, make(count.sizes.queries), {}};
    const OpsSeen seen;
    forward(module, inputs);
    std::size_t products = 0;
    for (const char* product :
         {"aten::mm", "aten::addmm", "aten::bmm", "aten::addmv", "mkldnn::_linear_pointwise"}) {
      products += seen.count(product);
    }
    EXPECT_LE(seen.names().size(), count.ops) << c10::Join(" ", seen.names());
    EXPECT_EQ(products, count.products) << c10::Join(" ", seen.names());
  }
}

TEST(FoldedForward, DispatchesFewOpsForSharedHeads) {
  // The weights folded, the query, W_v folded into fc_out, fc_out.
  expect_counts<SharedProjectionAttention>({{{32, 9, 9, 256, 8}, torch::kFloat32, 46, 4},
                                            {{1, 128, 128, 512, 8}, torch::kFloat32, 46, 4},
                                            {{2, 1, 64, 512, 8}, torch::kFloat32, 46, 4},
                                            {{2, 1, 64, 512, 8}, torch::kBFloat16, 74, 4}});
}

TEST(FoldedForward, DispatchesFewOpsForFullProjections) {
  // One for each layer, and the value's bias through the output's weight where that pays; around
  // raw keys two small ones in place of the large.
  expect_counts<FullProjectionAttention>({{{32, 9, 9, 256, 8}, torch::kFloat32, 52, 5},
                                          {{1, 128, 128, 512, 8}, torch::kFloat32, 52, 4},
                                          {{2, 1, 64, 512, 8}, torch::kFloat32, 70, 4},
                                          {{2, 1, 64, 512, 8}, torch::kBFloat16, 108, 4}});
}

TEST(Backend, AutoRunsTheFusedKernelInTrainingToo) {
  torch::manual_seed(0);
  SharedProjectionAttention automatic(32, 2);
  const auto x = torch::randn({2, 50, 32});
  const auto with = [&](Backend backend) {
    automatic->options.backend(backend);
    return automatic->forward(x, x, x);
  };
  for (const bool records : {true, false}) {
    const torch::AutoGradMode grad_mode(records);
    const auto fused = with(Backend::Auto);
    EXPECT_EQ(fused.requires_grad(), records);
    EXPECT_TRUE(bit_equal(fused, with(Backend::Fused)));
    EXPECT_FALSE(bit_equal(fused, with(Backend::Eager)));
    EXPECT_TRUE(near(fused, with(Backend::Eager), 1e-5));
  }
}

TEST(Backend, FusedSaysWhyItCannotRun) {
  const std::vector<std::string> words = {
      "backend: expected arguments that the fused kernel can run, got others: it takes float32"};
  const auto x = torch::randn({2, 5, 8}, torch::kFloat64);
  const auto refuses = [&](auto module) {
    module->to(torch::kFloat64);
    return throws<c10::ValueError>([&] { module->forward(x, x, x); }, words);
  };
  EXPECT_TRUE(refuses(
      SharedProjectionAttention(SharedProjectionAttentionOptions(8, 2).backend(Backend::Fused))));
  EXPECT_TRUE(refuses(
      FullProjectionAttention(FullProjectionAttentionOptions(8, 2).backend(Backend::Fused))));
  EXPECT_TRUE(refuses(
      InferredLengthAttention(InferredLengthAttentionOptions(8, 2).backend(Backend::Fused))));
}

}  // namespace
}  // namespace self_attention
