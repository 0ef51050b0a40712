// What is refused, and in which words; what the mask helpers and the inferred lengths give.

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/identity_modules.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::throws;

torch::Tensor input(int64_t batch, int64_t length, int64_t embed) {
  return torch::randn({batch, length, embed});
}

TEST(Options, SizesThatCannotRunAreRefused_R19_R21) {
  EXPECT_TRUE(throws<c10::ValueError>([] { SharedProjectionAttention(5, 2); },
                                      {"[SharedProjectionAttention] heads: expected a divisor of "
                                       "embed_size=5, got 2"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { FullProjectionAttention(5, 2); },
                                      {"[FullProjectionAttention] num_heads: expected a divisor of "
                                       "embed_dim=5, got 2"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { InferredLengthAttention(2, 4); },
                                      {"[InferredLengthAttention] heads: expected at most "
                                       "embed_size=2",
                                       "got 4"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { SharedProjectionAttention(8, 0); },
                                      {"heads: expected a positive number, got 0"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { SharedProjectionAttention(8, -2); },
                                      {"heads: expected a positive number, got -2"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { SharedProjectionAttention(0, 2); },
                                      {"embed_size: expected a positive number, got 0"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { FullProjectionAttention(-8, 2); },
                                      {"embed_dim: expected a positive number, got -8"}));
}

TEST(Options, SettersAndGetters) {
  auto options = SharedProjectionAttentionOptions(8, 2).heads(4);
  EXPECT_EQ(SharedProjectionAttention(options)->options.heads(), 4);
  EXPECT_EQ(FullProjectionAttention(FullProjectionAttentionOptions(8, 2))->options.embed_dim(), 8);
  EXPECT_EQ(InferredLengthAttention(InferredLengthAttentionOptions(5, 2))->options.embed_size(), 5);
}

/// One call that must be refused: what is passed, and the words of the message.
struct Refusal {
  std::string name;
  torch::Tensor values, keys, query, mask;
  std::vector<std::string> words;
};

std::vector<Refusal> shape_refusals() {
  const auto x = input(2, 5, 8);
  const auto k = input(2, 7, 8);
  return {
      {"ValuesLongerThanKeys_R15",
       input(2, 6, 8),
       x,
       x,
       {},
       {"values: expected as many positions as keys, K=5, got 6 in (2, 6, 8)"}},
      {"OneValueForAllKeys_R16",
       input(2, 1, 8),
       x,
       x,
       {},
       {"values: expected as many positions as keys, K=5, got 1 in (2, 1, 8)"}},
      {"BatchOfKeys_R17",
       input(4, 5, 8),
       input(4, 5, 8),
       x,
       {},
       {"values: expected shape (N=2, K, E=8), got (4, 5, 8)"}},
      {"BatchOfOneIsNotBroadcast",
       x,
       input(1, 5, 8),
       x,
       {},
       {"keys: expected shape (N=2, K, E=8), got (1, 5, 8)"}},
      {"Width_R20",
       input(2, 5, 16),
       input(2, 5, 16),
       input(2, 5, 16),
       {},
       {"query: expected shape (N, Q, E=8), got (2, 5, 16)"}},
      {"WidthOfKeys",
       x,
       input(2, 5, 16),
       x,
       {},
       {"keys: expected shape (N=2, K, E=8), got (2, 5, 16)"}},
      {"RankTwo_R23",
       torch::randn({3, 8}),
       torch::randn({3, 8}),
       torch::randn({3, 8}),
       {},
       {"query: expected shape (N, Q, E=8), got (3, 8)"}},
      {"RankFour_R23",
       torch::randn({2, 3, 1, 8}),
       torch::randn({2, 3, 1, 8}),
       torch::randn({2, 3, 1, 8}),
       {},
       {"query: expected shape (N, Q, E=8), got (2, 3, 1, 8)"}},
      {"UndefinedQuery", x, x, torch::Tensor(), {}, {"query: expected", "got"}},
      {"PaddingMaskWithoutAxes",
       k,
       k,
       x,
       torch::ones({2, 7}),
       {"mask: expected a shape that broadcasts to (N=2, H=2, Q=5, K=7), got (2, 7); a padding "
        "mask is (2, 1, 1, 7)"}},
      {"MaskThatWouldEnlargeTheBatch",
       x,
       x,
       x,
       torch::ones({4, 1, 1, 5}),
       {"mask: expected a shape that broadcasts", "got (4, 1, 1, 5)"}},
      {"MaskThatWouldEnlargeTheQuery",
       input(2, 5, 8),
       input(2, 5, 8),
       input(2, 1, 8),
       torch::ones({5, 5}),
       {"mask: expected a shape that broadcasts to (N=2, H=2, Q=1, K=5), got (5, 5)"}},
      {"MaskOfRankFive", x, x, x, torch::ones({1, 1, 1, 1, 5}), {"mask", "got (1, 1, 1, 1, 5)"}},
      {"VectorMaskOfAnotherLength", x, x, x, torch::ones({4}), {"mask", "got (4,)"}},
  };
}

class RefusedShape : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedShape, NamesArgumentExpectationAndShape) {
  const Refusal& refusal = GetParam();
  auto words = refusal.words;
  SharedProjectionAttention shared(8, 2);
  words.insert(words.begin(), "[SharedProjectionAttention] ");
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { shared->forward(refusal.values, refusal.keys, refusal.query, refusal.mask); }, words));
  FullProjectionAttention full(8, 2);
  words.front() = "[FullProjectionAttention] ";
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { full->forward(refusal.values, refusal.keys, refusal.query, refusal.mask); }, words));
}

INSTANTIATE_TEST_SUITE_P(All, RefusedShape, ::testing::ValuesIn(shape_refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(FullProjection, KeysOrQueryAloneIsRefused) {
  FullProjectionAttention module(8, 2);
  const auto x = input(2, 3, 8);
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(x, x); },
                                      {"query: expected keys and query both"}));
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(x, {}, x); },
                                      {"keys: expected keys and query both"}));
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(input(2, 3, 4)); },
                                      {"[FullProjectionAttention] values: expected shape"}));
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward({}); }, {"values: expected a tensor"}));
}

TEST(Dtype, IntegersAndMixturesAreRefused) {
  SharedProjectionAttention module(8, 2);
  const auto x = input(2, 3, 8);
  const auto wide = x.to(torch::kFloat64);
  EXPECT_TRUE(
      throws<c10::TypeError>([&] { module->forward(x, x.to(torch::kInt64), x); },
                             {"keys: expected float64, float32, bfloat16 or float16, got int64"}));
  EXPECT_TRUE(throws<c10::TypeError>(
      [&] { module->forward(x, x, wide); },
      {"query: expected float32, the dtype of the parameters, got float64"}));
  EXPECT_TRUE(throws<c10::TypeError>([&] { module->forward(x, x, x.to(torch::kComplexFloat)); },
                                     {"query: expected", "ComplexFloat"}));
  module->fc_out->to(torch::kFloat64);
  EXPECT_TRUE(throws<c10::TypeError>(
      [&] { module->forward(x, x, x); },
      {"fc_out_weight: expected float32, the dtype of the other parameters, got float64"}));
}

TEST(Device, AnotherDeviceIsRefused) {
  SharedProjectionAttention module(8, 2);
  const auto x = input(2, 3, 8);
  const auto elsewhere = torch::empty({2, 3, 8}, torch::kMeta);
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { module->forward(x, elsewhere, x); },
                              {"keys: expected device cpu, that of the parameters, got meta"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] {
        module->forward(x, x, x, torch::ones({3, 3}, torch::kMeta));
      },
      {"mask: expected device cpu", "got meta"}));
}

TEST(Layout, SparseTensorsAreRefused) {
  SharedProjectionAttention module(8, 2);
  const auto x = input(2, 3, 8);
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(x, x.to_sparse(), x); },
                                      {"keys: expected a dense tensor, got Sparse"}));
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(x, x, x, torch::eye(3).to_sparse()); },
                                      {"mask: expected a dense tensor"}));
}

TEST(Parameters, OfTheWrongShapeAreRefused) {
  SharedProjectionAttention module(8, 2);
  const auto x = input(2, 3, 8);
  module->options.heads(4);
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(x, x, x); },
                                      {"values_weight: expected shape (2, 2), got (4, 4)"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] {
        functional::full_projection_attention(
            x, {}, {}, {}, torch::eye(8), torch::zeros({8}), torch::eye(4), torch::zeros({8}),
            torch::eye(8), torch::zeros({8}), torch::eye(8), torch::zeros({8}), 2);
      },
      {"[full_projection_attention] k_weight: expected shape (8, 8), got (4, 4)"}));
}

TEST(Functional, EqualsTheModule) {
  const auto x = input(2, 3, 8);
  const auto mask = causal_mask(3, 3);
  SharedProjectionAttention shared(8, 2);
  EXPECT_TRUE(bit_equal(
      functional::shared_projection_attention(x, x, x, mask, shared->values->weight,
                                              shared->keys->weight, shared->queries->weight,
                                              shared->fc_out->weight, shared->fc_out->bias, 2),
      shared->forward(x, x, x, mask)));
  InferredLengthAttention inferred(8, 2);
  EXPECT_TRUE(bit_equal(
      functional::inferred_length_attention(x, x, x, mask, inferred->values->weight,
                                            inferred->keys->weight, inferred->queries->weight,
                                            inferred->fc_out->weight, inferred->fc_out->bias, 2),
      inferred->forward(x, x, x, mask)));
  FullProjectionAttention full(8, 2);
  EXPECT_TRUE(bit_equal(
      functional::full_projection_attention(
          x, {}, {}, mask, full->q_linear->weight, full->q_linear->bias, full->k_linear->weight,
          full->k_linear->bias, full->v_linear->weight, full->v_linear->bias,
          full->output_linear->weight, full->output_linear->bias, 2),
      full->forward(x, {}, {}, mask)));
}

TEST(InferenceTensors, RefuseToRecordGradients) {
  torch::Tensor x;
  SharedProjectionAttention module{nullptr};
  {
    const c10::InferenceMode inference;
    module = SharedProjectionAttention(8, 2);
    x = input(2, 3, 8);
    EXPECT_EQ(module->forward(x, x, x).size(1), 3);
    // The inputs alone are enough.
    for (auto& parameter : module->parameters()) parameter.set_requires_grad(false);
  }
  const auto outside = input(2, 3, 8).requires_grad_();
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(outside, outside, outside); },
                                      {"[SharedProjectionAttention] values_weight: expected a "
                                       "parameter that gradients can be recorded for",
                                       "InferenceMode"}));
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(module->forward(outside, outside, outside).size(1), 3);
}

TEST(InferenceTensors, OneAmongTheParametersIsEnough) {
  FullProjectionAttention module(8, 2);
  {
    const c10::InferenceMode inference;
    module->v_linear = torch::nn::Linear(8, 8);
  }
  const auto x = input(2, 3, 8);
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { module->forward(x); }, {"v_weight: expected a parameter"}));
}

TEST(MaskHelpers, FromLengths) {
  const auto mask = mask_from_lengths(torch::tensor({0, 2, 3}, torch::kInt32), 3);
  EXPECT_EQ(mask.scalar_type(), torch::kBool);
  EXPECT_EQ(mask.sizes(), (std::vector<int64_t>{3, 1, 1, 3}));
  EXPECT_TRUE(bit_equal(
      mask.view({3, 3}).to(torch::kFloat32),
      torch::tensor({0., 0., 0., 1., 1., 0., 1., 1., 1.}).view({3, 3}).to(torch::kFloat32)));
  EXPECT_EQ(mask_from_lengths(torch::zeros({0}, torch::kInt64), 3).size(0), 0);
  EXPECT_EQ(mask_from_lengths(torch::zeros({2}, torch::kInt64), 0).size(3), 0);
  EXPECT_TRUE(throws<c10::ValueError>(
      [] {
        mask_from_lengths(torch::tensor({1, 4}), 3);
      },
      {"[mask_from_lengths] lengths: expected numbers from 0 to 3, got 4"}));
  EXPECT_TRUE(
      throws<c10::ValueError>([] { mask_from_lengths(torch::tensor({-1}), 3); }, {"got -1"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [] {
        mask_from_lengths(torch::ones({2, 2}, torch::kInt64), 3);
      },
      {"expected shape (N,), got (2, 2)"}));
  EXPECT_TRUE(throws<c10::ValueError>([] { mask_from_lengths(torch::tensor({1}), -1); },
                                      {"key_length", "got -1"}));
  EXPECT_TRUE(throws<c10::TypeError>([] { mask_from_lengths(torch::tensor({1.0}), 3); },
                                     {"expected an integer dtype, got float32"}));
  EXPECT_TRUE(
      throws<c10::TypeError>([] { mask_from_lengths(torch::tensor({true}), 3); }, {"got bool"}));
}

TEST(MaskHelpers, CausalRefusesNegativeLengths) {
  EXPECT_EQ(causal_mask(0, 3).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE(throws<c10::ValueError>([] { causal_mask(-1, 3); },
                                      {"[causal_mask] query_length", "got -1"}));
  EXPECT_TRUE(
      throws<c10::ValueError>([] { causal_mask(1, -3); }, {"[causal_mask] key_length", "got -3"}));
}

TEST(MaskHelpers, FromKeyPaddingMaskTurnsItsMeaningRound_R08) {
  const auto padding = torch::tensor({false, true, false, false}).view({2, 2});
  SharedProjectionAttention module(8, 2);
  const auto x = input(2, 2, 8);
  EXPECT_TRUE(bit_equal(module->forward(x, x, x, mask_from_key_padding_mask(padding)),
                        module->forward(x, x, x, mask_from_lengths(torch::tensor({1, 2}), 2))));
  EXPECT_TRUE(throws<c10::TypeError>(
      [&] { mask_from_key_padding_mask(padding.to(torch::kFloat32)); },
      {"[mask_from_key_padding_mask] key_padding_mask: expected bool", "got float32"}));
  EXPECT_TRUE(throws<c10::ValueError>([&] { mask_from_key_padding_mask(padding[0]); },
                                      {"expected shape (N, K), got (2,)"}));
}

/// Collects warnings, every one of them although the library warns once a process.
class WarningRecorder : public c10::WarningHandler {
 public:
  WarningRecorder() : previous_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
    c10::WarningUtils::set_warnAlways(true);
  }
  ~WarningRecorder() override {
    c10::WarningUtils::set_warning_handler(previous_);
    c10::WarningUtils::set_warnAlways(false);
  }
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;

 private:
  c10::WarningHandler* previous_;
};

TEST(InferredLength, ReshapesLikePythonAndWarns_R17_R19_R20_R23) {
  WarningRecorder warnings;
  torch::manual_seed(0);
  InferredLengthAttention module(8, 2);
  const auto keys = input(4, 3, 8);
  const auto query = input(2, 3, 8);
  EXPECT_TRUE(bit_equal(module->forward(keys, keys, query),
                        module->forward(keys.reshape({2, 6, 8}), keys.reshape({2, 6, 8}), query)));
  EXPECT_EQ(warnings.messages.size(), 1);
  const auto single = input(1, 4, 8);
  EXPECT_EQ(module->forward(single, single, query).sizes(), (std::vector<int64_t>{2, 3, 8}));
  const auto wide = input(1, 3, 16);
  EXPECT_EQ(module->forward(wide, wide, wide).sizes(), (std::vector<int64_t>{1, 6, 8}));
  const auto flat = torch::randn({3, 8});
  EXPECT_EQ(module->forward(flat, flat, flat).sizes(), (std::vector<int64_t>{3, 1, 8}));
  InferredLengthAttention odd(5, 2);
  const auto four = input(1, 4, 5);
  EXPECT_EQ(odd->forward(four, four, four).sizes(), (std::vector<int64_t>{1, 5, 5}));
  EXPECT_EQ(InferredLengthAttention(6, 4)
                ->forward(input(1, 2, 6), input(1, 2, 6), input(1, 2, 6))
                .sizes(),
            (std::vector<int64_t>{1, 3, 6}));
  ASSERT_EQ(warnings.messages.size(), 6);
  EXPECT_NE(warnings.messages.back().find(
                "[InferredLengthAttention] the lengths inferred for values (1, 2, 6)"),
            std::string::npos);
  module->forward(query, query, query);
  EXPECT_EQ(warnings.messages.size(), 6) << "nothing was reshaped";
}

TEST(InferredLength, WhatCannotBeReshapedIsRefused_R19) {
  InferredLengthAttention module(5, 2);
  const auto three = input(1, 3, 5);
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(three, three, three); },
                                      {"[InferredLengthAttention] values: expected a multiple of "
                                       "N*H*d = 1*2*2 elements, got 15 in (1, 3, 5)"}));
  const auto four = input(1, 4, 5);
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { module->forward(input(1, 8, 5), four, four); },
      {"values: expected as many positions as keys, K=5, got 10 in (1, 8, 5)"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] {
        module->forward(four, four, four, torch::ones({4, 4}));
      },
      {"mask: expected a shape that broadcasts to (N=1, H=2, Q=5, K=5), got (4, 4)"}));
  const auto vast = torch::empty({int64_t{1} << 61, 0, 5});
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(four, four, vast); },
                                      {"values: expected a multiple of N*H*d", "got 20"}));
  const auto scalar = torch::tensor(1.0);
  EXPECT_TRUE(throws<c10::ValueError>([&] { module->forward(scalar, scalar, scalar); },
                                      {"queries: expected a batch of at least one", "got ()"}));
}

}  // namespace
}  // namespace self_attention
