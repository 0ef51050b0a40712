// forward_with_weights: the weights, and that all else is as in forward.

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "support/all_modules.h"
#include "support/temporary_folder.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::near;
using torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 3;
constexpr int64_t kQueries = 5;
constexpr int64_t kKeys = 7;
constexpr int64_t kEmbed = 12;
constexpr int64_t kHeadDim = 4;

/// The same weights for every backend.
template <typename Holder>
Holder make(torch::ScalarType dtype, bool is_causal = false, Backend backend = Backend::Auto) {
  torch::manual_seed(0);
  using Options = decltype(std::declval<Holder>()->options);
  Holder module(Options(kEmbed, kHeads).backend(backend).is_causal(is_causal));
  module->to(dtype);
  return module;
}

struct Inputs {
  explicit Inputs(torch::ScalarType dtype = torch::kFloat64) {
    torch::manual_seed(1);
    values = torch::randn({kBatch, kKeys, kEmbed}).to(dtype);
    keys = torch::randn({kBatch, kKeys, kEmbed}).to(dtype);
    query = 3 * torch::randn({kBatch, kQueries, kEmbed}).to(dtype);
  }
  Tensor values, keys, query;
};

/// None, padding, one a query, one a head, and one that leaves sequence 1 no key at all.
std::vector<Tensor> masks() {
  torch::manual_seed(2);
  const Tensor nothing_of_one = torch::tensor({true, false}).view({kBatch, 1, 1, 1});
  return {Tensor(), mask_from_lengths(torch::tensor({3, 6}), kKeys),
          torch::rand({kQueries, kKeys}) > 0.4, torch::rand({1, kHeads, kQueries, kKeys}) > 0.4,
          nothing_of_one};
}

/// Where a score takes part, bool (N, H, Q, K).
Tensor kept(const Tensor& mask, bool is_causal) {
  Tensor keep = torch::ones({kBatch, kHeads, kQueries, kKeys}, torch::kBool);
  if (mask.defined()) keep = keep.logical_and(mask != 0);
  return is_causal ? keep.logical_and(causal_mask(kQueries, kKeys)) : keep;
}

/// (N, L, E) -> (N, H, L, d).
Tensor heads_of(const Tensor& x) { return x.unflatten(-1, {kHeads, -1}).transpose(1, 2); }

/// softmax(score / √…) by the equations in the module's header.
template <typename Holder>
Tensor formula(const Holder& module, const Inputs& inputs, const Tensor& keep) {
  Tensor q, k;
  double divisor = 0;
  if constexpr (testing::kIsFull<Holder>) {
    q = heads_of(torch::linear(inputs.query, module->q_linear->weight, module->q_linear->bias));
    k = heads_of(torch::linear(inputs.keys, module->k_linear->weight, module->k_linear->bias));
    divisor = std::sqrt(static_cast<double>(kHeadDim));
  } else {
    q = torch::linear(heads_of(inputs.query), module->queries->weight);
    k = torch::linear(heads_of(inputs.keys), module->keys->weight);
    divisor = std::sqrt(static_cast<double>(kEmbed));
  }
  const Tensor scores = q.matmul(k.transpose(-2, -1));
  return torch::softmax(scores.masked_fill(keep.logical_not(), -1e20) / divisor, -1);
}

template <typename Holder>
class AttentionWeights : public ::testing::Test {
 protected:
  /// Both results; the weights a head.
  static std::tuple<Tensor, Tensor> run(Holder module, const Inputs& inputs,
                                        const Tensor& mask = {}) {
    return module->forward_with_weights(inputs.values, inputs.keys, inputs.query, mask,
                                        /*average_weights=*/false);
  }

  /// Calls `check(mask, is_causal)` for each.
  template <typename Check>
  static void for_each_mask(Check check) {
    int index = 0;
    for (const Tensor& mask : masks()) {
      for (const bool is_causal : {false, true}) {
        SCOPED_TRACE(c10::str("mask ", index, is_causal ? ", causal" : ""));
        check(mask, is_causal);
      }
      ++index;
    }
  }
};

TYPED_TEST_SUITE(AttentionWeights, testing::AllModules, testing::ModuleNames);

TYPED_TEST(AttentionWeights, AreTheFormulas) {
  this->for_each_mask([&](const Tensor& mask, bool is_causal) {
    const auto module = make<TypeParam>(torch::kFloat64, is_causal);
    const Inputs inputs;
    const Tensor right = formula(module, inputs, kept(mask, is_causal));
    EXPECT_TRUE(near(std::get<1>(this->run(module, inputs, mask)), right, 1e-14));
  });
}

struct Rounding {
  torch::ScalarType dtype;
  double weight;  ///< of one weight
  double sum;     ///< of a row's sum
};

TYPED_TEST(AttentionWeights, KeepTheInputsDtypeAndSumToOne) {
  for (const auto& [dtype, weight, sum] : {Rounding{torch::kFloat32, 1e-6, 1e-6},
                                           {torch::kFloat16, 3e-3, 1e-3},
                                           {torch::kBFloat16, 3e-2, 1e-2}}) {
    this->for_each_mask([&, dtype = dtype, weight = weight, sum = sum](const Tensor& mask,
                                                                       bool is_causal) {
      auto module = make<TypeParam>(dtype, is_causal);
      const Inputs inputs(dtype);
      const Tensor keep = kept(mask, is_causal);
      const Tensor weights = std::get<1>(this->run(module, inputs, mask));
      EXPECT_EQ(weights.scalar_type(), dtype);
      module->to(torch::kFloat64);
      Inputs wide;
      wide.query = inputs.query.to(torch::kFloat64);
      wide.keys = inputs.keys.to(torch::kFloat64);
      EXPECT_TRUE(near(weights, formula(module, wide, keep), weight));
      EXPECT_TRUE(near(weights.to(torch::kFloat64).sum(-1),
                       torch::ones({kBatch, kHeads, kQueries}, torch::kFloat64), sum));
      // Nothing of what is masked, unless that is the whole row: then all of it alike.
      const Tensor any = keep.any(-1, /*keepdim=*/true);
      EXPECT_FALSE(weights.masked_select(any.logical_and(keep.logical_not())).any().item<bool>());
      const Tensor even = weights.masked_select(any.logical_not());
      EXPECT_TRUE(bit_equal(even, torch::full_like(even, 1.0 / kKeys)));
    });
  }
}

TYPED_TEST(AttentionWeights, ComeWithTheOutputOfEagerToTheBit) {
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    this->for_each_mask([&](const Tensor& mask, bool is_causal) {
      const Inputs inputs(dtype);
      auto eager = make<TypeParam>(dtype, is_causal, Backend::Eager);
      const Tensor right = eager->forward(inputs.values, inputs.keys, inputs.query, mask);
      right.sum().backward();
      for (const Backend backend : {Backend::Auto, Backend::Fused}) {
        auto module = make<TypeParam>(dtype, is_causal, backend);
        const Tensor output = std::get<0>(this->run(module, inputs, mask));
        EXPECT_TRUE(bit_equal(output, right));
        output.sum().backward();
        for (const auto& parameter : module->named_parameters()) {
          EXPECT_TRUE(bit_equal(parameter.value().grad(),
                                eager->named_parameters()[parameter.key()].grad()))
              << parameter.key();
        }
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(bit_equal(std::get<0>(this->run(module, inputs, mask)), right));
      }
    });
  }
}

TYPED_TEST(AttentionWeights, AreTheMeanOverTheHeadsByDefault) {
  auto module = make<TypeParam>(torch::kFloat64);
  const Inputs inputs;
  const auto [output, weights] = this->run(module, inputs);
  const auto [same, mean] = module->forward_with_weights(inputs.values, inputs.keys, inputs.query);
  EXPECT_TRUE(bit_equal(same, output));
  EXPECT_EQ(mean.sizes(), (std::vector<int64_t>{kBatch, kQueries, kKeys}));
  EXPECT_TRUE(near(mean, weights.sum(1) / kHeads, 1e-15));
}

TYPED_TEST(AttentionWeights, GiveGradientsToWhatMakesThem) {
  Inputs inputs;
  for (Tensor* input : {&inputs.values, &inputs.keys, &inputs.query}) input->requires_grad_();
  auto module = make<TypeParam>(torch::kFloat64, /*is_causal=*/true);
  const auto gradients = [&](const Tensor& weights) {
    const std::vector<Tensor> sources = {inputs.query, inputs.keys, inputs.values};
    return torch::autograd::grad({weights.square().sum()}, sources, {}, {}, false,
                                 /*allow_unused=*/true);
  };
  const Tensor mask = masks()[1];
  const auto found = gradients(std::get<1>(this->run(module, inputs, mask)));
  const auto right = gradients(formula(module, inputs, kept(mask, true)));
  EXPECT_GT(right[0].abs().max().template item<double>(), 1e-3);
  EXPECT_TRUE(near(found[0], right[0], 1e-13));
  EXPECT_TRUE(near(found[1], right[1], 1e-13));
  EXPECT_FALSE(found[2].defined());
}

TYPED_TEST(AttentionWeights, OfNothingAreEmpty) {
  auto module = make<TypeParam>(torch::kFloat32);
  const Tensor rows = torch::randn({kBatch, kQueries, kEmbed});
  const Tensor none = torch::randn({kBatch, 0, kEmbed});
  const auto [biases, no_keys] = module->forward_with_weights(none, none, rows, {}, false);
  EXPECT_TRUE(bit_equal(biases, module->forward(none, none, rows)));
  EXPECT_EQ(no_keys.sizes(), (std::vector<int64_t>{kBatch, kHeads, kQueries, 0}));
  const auto [output, no_queries] = module->forward_with_weights(rows, rows, none);
  EXPECT_EQ(output.sizes(), none.sizes());
  EXPECT_EQ(no_queries.sizes(), (std::vector<int64_t>{kBatch, 0, kQueries}));
}

/// The message of the error of `call`, which must be a c10::Error.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TYPED_TEST(AttentionWeights, AreRefusedInTheWordsOfForward) {
  auto module = make<TypeParam>(torch::kFloat32);
  const Inputs inputs(torch::kFloat32);
  const Tensor& x = inputs.query;
  const std::vector<std::vector<Tensor>> calls = {
      {inputs.values, x, x, {}},
      {inputs.values, inputs.keys, x, torch::ones({kBatch, kKeys})},
      {inputs.values, inputs.keys, x.to(torch::kFloat64), {}},
      {inputs.values.to(torch::kInt64), inputs.keys, x, {}},
      {x, x, {}, {}},
      {{}, {}, {}, {}},
      {x, x.to_sparse(), x, {}},
      {x, x, x.slice(2, 0, 5), {}},
  };
  for (const auto& call : calls) {
    const std::string words = refusal([&] { module->forward(call[0], call[1], call[2], call[3]); });
    EXPECT_NE(words.find(": expected "), std::string::npos) << words;
    EXPECT_EQ(refusal([&] { module->forward_with_weights(call[0], call[1], call[2], call[3]); }),
              words);
  }
}

TYPED_TEST(AttentionWeights, AreSavedAsABuffer) {
  auto module = make<TypeParam>(torch::kBFloat16);
  const Tensor weights = std::get<1>(this->run(module, Inputs(torch::kBFloat16)));
  torch::nn::Module maps;
  maps.register_buffer("layer0", weights);
  const io_test::TemporaryFolder folder;
  for (const char* name : {"maps.safetensors", "maps.pt"}) {
    const std::string file = (folder.path() / name).string();
    save_state_dict(maps, file);
    torch::nn::Module read;
    const Tensor target = read.register_buffer("layer0", torch::zeros_like(weights));
    load_state_dict(read, file);
    EXPECT_TRUE(bit_equal(target, weights));
  }
}

TEST(AttentionWeightsOfFullProjection, AreThoseOfSelfAttentionOnOneInput) {
  auto module = make<FullProjectionAttention>(torch::kFloat32, false, Backend::Eager);
  const Tensor x = Inputs(torch::kFloat32).keys;
  const auto [output, weights] = module->forward_with_weights(x);
  const auto [same, right] = module->forward_with_weights(x, x, x);
  EXPECT_TRUE(bit_equal(output, module->forward(x)));
  EXPECT_TRUE(near(weights, right, 1e-6));
}

TEST(AttentionWeightsOfFullProjection, AreThoseOfTorchsModule) {
  auto ours = make<FullProjectionAttention>(torch::kFloat64);
  torch::nn::MultiheadAttention torchs(kEmbed, kHeads);
  torchs->to(torch::kFloat64);
  {
    const torch::NoGradGuard no_grad;
    torchs->in_proj_weight.copy_(
        torch::cat({ours->q_linear->weight, ours->k_linear->weight, ours->v_linear->weight}));
    torchs->in_proj_bias.copy_(
        torch::cat({ours->q_linear->bias, ours->k_linear->bias, ours->v_linear->bias}));
    torchs->out_proj->weight.copy_(ours->output_linear->weight);
    torchs->out_proj->bias.copy_(ours->output_linear->bias);
  }
  const Inputs inputs;
  const auto first = [](const Tensor& x) { return x.transpose(0, 1); };
  const Tensor padding = torch::arange(kKeys) >= torch::tensor({{3}, {6}});
  // There, true drops a key, and what is added to the scores masks them.
  const Tensor causal = torch::full({kQueries, kKeys}, -INFINITY, torch::kFloat64).triu(1);
  for (const bool average : {true, false}) {
    for (const bool is_causal : {false, true}) {
      ours->options.is_causal(is_causal);
      const auto [right, right_weights] =
          torchs->forward(first(inputs.query), first(inputs.keys), first(inputs.values), padding,
                          /*need_weights=*/true, is_causal ? causal : Tensor(), average);
      const auto [output, weights] = ours->forward_with_weights(
          inputs.values, inputs.keys, inputs.query, mask_from_key_padding_mask(padding), average);
      EXPECT_TRUE(near(weights, right_weights, 1e-14));
      EXPECT_TRUE(near(output, first(right), 1e-13));
    }
  }
}

TEST(AttentionWeightsOfInferredLength, HaveTheLengthsThatWereInferred) {
  InferredLengthAttention module(6, 4);
  const Tensor x = torch::randn({1, 2, 6});
  EXPECT_EQ(std::get<1>(module->forward_with_weights(x, x, x, {}, false)).sizes(),
            (std::vector<int64_t>{1, 4, 3, 3}));
  const Tensor keys = torch::randn({4, 3, 6});
  const Tensor query = torch::randn({2, 2, 6});
  EXPECT_EQ(std::get<1>(module->forward_with_weights(keys, keys, query)).sizes(),
            (std::vector<int64_t>{2, 3, 9}));
}

}  // namespace
}  // namespace self_attention
