// What the numbers mean: scale, masks, empty sequences, non-finite inputs, low precision.

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/identity_modules.h"
#include "support/tensor_matchers.h"
#include "support/transforms.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::identity_attention;
using testing::key_mask;
using testing::near;
using testing::rows;
using testing::TwoKeys;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// CPU autocast to `dtype` while it lives.
class Autocast {
 public:
  explicit Autocast(torch::ScalarType dtype) {
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

torch::Tensor attend(const TwoKeys& input, const torch::Tensor& mask) {
  return identity_attention(4, 2)->forward(input.values, input.keys, input.query, mask);
}

TEST(Scale, SharedProjectionDividesByTheRootOfEmbedSize_R01) {
  auto module = identity_attention(4, 2);
  module->to(torch::kFloat64);
  const auto output = module->forward(rows({{1, 1, 1, 1}, {0, 0, 0, 0}}, torch::kFloat64),
                                      rows({{2, 0, 2, 0}, {0, 0, 0, 0}}, torch::kFloat64),
                                      rows({{2, 0, 2, 0}}, torch::kFloat64));
  EXPECT_TRUE(near(output, torch::full({1, 1, 4}, 0.8807970779778823, torch::kFloat64), 1e-15));
}

TEST(Scale, FullProjectionDividesByTheRootOfHeadDim_R01) {
  auto module = testing::with_identity_weights(FullProjectionAttention(4, 2));
  module->to(torch::kFloat64);
  const auto output = module->forward(rows({{1, 1, 1, 1}, {0, 0, 0, 0}}, torch::kFloat64),
                                      rows({{2, 0, 2, 0}, {0, 0, 0, 0}}, torch::kFloat64),
                                      rows({{2, 0, 2, 0}}, torch::kFloat64));
  const double right = 1 / (1 + std::exp(-4 / std::sqrt(2.0)));
  EXPECT_TRUE(near(output, torch::full({1, 1, 4}, right, torch::kFloat64), 1e-15));
}

TEST(FullProjection, EqualsTheStandardFormulaWithSeveralHeads_R03) {
  torch::manual_seed(0);
  FullProjectionAttention module(8, 2);
  module->to(torch::kFloat64);
  const auto x = torch::randn({2, 3, 8}, torch::kFloat64);
  const auto split = [](const torch::Tensor& t) { return t.view({2, 3, 2, 4}).transpose(1, 2); };
  const auto q = split(module->q_linear->forward(x));
  const auto k = split(module->k_linear->forward(x));
  const auto v = split(module->v_linear->forward(x));
  const auto weights = torch::softmax(q.matmul(k.transpose(-2, -1)) / 2.0, -1);
  const auto right =
      module->output_linear->forward(weights.matmul(v).transpose(1, 2).reshape({2, 3, 8}));
  EXPECT_TRUE(near(module->forward(x), right, 1e-13));
  EXPECT_TRUE(near(module->forward(x, x, x), right, 1e-13));
}

TEST(Mask, RowWithEveryKeyMaskedIsTheMeanOfTheValues_R04) {
  EXPECT_TRUE(near(attend({}, torch::zeros({1, 1, 1, 2})), rows({{3, 4, 5, 6}}), 0));
}

TEST(Mask, RowShapedMaskBlindsTheQueryNotTheKey_R07) {
  auto module = identity_attention(4, 2);
  const auto x = torch::eye(4).view({2, 2, 4});
  const auto mask = torch::tensor({1, 0, 1, 1}).view({2, 1, 2, 1});
  auto right = module->forward(x, x, x).clone();
  right[0][1] = torch::tensor({0.5, 0.5, 0.0, 0.0});
  EXPECT_TRUE(near(module->forward(x, x, x, mask), right, 1e-7));
}

TEST(Mask, IsNotAdditive_R08) {
  EXPECT_TRUE(bit_equal(attend({}, key_mask({0, -kInfinity})), rows({{5, 6, 7, 8}})));
  EXPECT_TRUE(bit_equal(attend({}, key_mask({1, 0})), rows({{1, 2, 3, 4}})));
}

class MaskDtype : public ::testing::TestWithParam<torch::ScalarType> {};

TEST_P(MaskDtype, KeepsWhereItIsNotZero_R09) {
  EXPECT_TRUE(bit_equal(attend({}, key_mask({1, 0}, GetParam())), rows({{1, 2, 3, 4}})));
}

INSTANTIATE_TEST_SUITE_P(All, MaskDtype,
                         ::testing::Values(torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16,
                                           torch::kInt32, torch::kInt64, torch::kFloat16,
                                           torch::kBFloat16, torch::kFloat32, torch::kFloat64),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Mask, NaNAndFractionsKeepAndNegativeZeroMasks_R09) {
  const auto unmasked = attend({}, {});
  EXPECT_NEAR(unmasked.flatten()[0].item<double>(), 1.4768, 1e-4);
  EXPECT_TRUE(bit_equal(attend({}, key_mask({kNaN, 1})), unmasked));
  EXPECT_TRUE(bit_equal(attend({}, key_mask({0.3, 1})), unmasked));
  EXPECT_TRUE(bit_equal(attend({}, key_mask({-0.0, 1})), rows({{5, 6, 7, 8}})));
}

class LowPrecision : public ::testing::TestWithParam<torch::ScalarType> {};

TEST_P(LowPrecision, MasksWork_R10) {
  auto module = identity_attention(4, 2);
  module->to(GetParam());
  const TwoKeys input;
  const auto run = [&](const torch::Tensor& mask) {
    return module->forward(input.values.to(GetParam()), input.keys.to(GetParam()),
                           input.query.to(GetParam()), mask);
  };
  EXPECT_TRUE(bit_equal(run(key_mask({1, 0})), rows({{1, 2, 3, 4}}, GetParam())));
  EXPECT_TRUE(bit_equal(run(key_mask({0, 0})), rows({{3, 4, 5, 6}}, GetParam())));
  if (GetParam() == torch::kFloat16) {
    EXPECT_TRUE(near(run({}), rows({{1.4766, 2.4766, 3.4766, 4.4766}}), 1e-3));
  }
}

TEST_P(LowPrecision, LargeNegativeScoresUnderAMaskAreNotNaN_R12) {
  auto module = identity_attention(4, 2);
  module->to(GetParam());
  const auto query = torch::full({1, 1, 4}, -40, GetParam());
  const auto keys = torch::full({1, 2, 4}, 40, GetParam());
  const auto values = TwoKeys().values.to(GetParam());
  EXPECT_TRUE(bit_equal(module->forward(values, keys, query, key_mask({0, 0})),
                        rows({{3, 4, 5, 6}}, GetParam())));
}

TEST_P(LowPrecision, AutocastMasksWork_R11) {
  auto module = identity_attention(4, 2);
  const TwoKeys input;
  const auto mask = key_mask({1, 0});
  const auto right = rows({{1, 2, 3, 4}}, GetParam());
  const Autocast autocast(GetParam());
  EXPECT_TRUE(bit_equal(module->forward(input.values, input.keys, input.query, mask), right));
  // Floating dtypes may mix here, as in Python, but for float64, which autocast leaves alone.
  const auto narrow = input.values.to(torch::kBFloat16);
  EXPECT_TRUE(bit_equal(module->forward(narrow, input.keys, input.query, mask), right));
  EXPECT_TRUE(testing::throws<c10::TypeError>(
      [&] { module->forward(input.values.to(torch::kFloat64), input.keys, input.query, mask); },
      {"values: expected float32", "got float64"}));
  module->fc_out->to(torch::kFloat16);
  EXPECT_TRUE(bit_equal(module->forward(input.values, input.keys, input.query, mask), right));
}

TEST_P(LowPrecision, StaysNearTheDoubleResult_R75) {
  torch::manual_seed(0);
  SharedProjectionAttention module(64, 4);
  const auto x = torch::randn({2, 10, 64});
  auto wide = std::dynamic_pointer_cast<SharedProjectionAttentionImpl>(module->clone());
  wide->to(torch::kFloat64);
  module->to(GetParam());
  const auto low = x.to(GetParam());
  const auto right =
      wide->forward(x.to(torch::kFloat64), x.to(torch::kFloat64), x.to(torch::kFloat64));
  const double tolerance = GetParam() == torch::kFloat16 ? 2.6e-3 : 1.9e-2;
  EXPECT_TRUE(near(module->forward(low, low, low), right, tolerance));
}

INSTANTIATE_TEST_SUITE_P(All, LowPrecision, ::testing::Values(torch::kFloat16, torch::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Precision, Float32StaysNearTheDoubleResult_R75) {
  torch::manual_seed(0);
  SharedProjectionAttention module(64, 4);
  const auto x = torch::randn({2, 10, 64});
  const auto output = module->forward(x, x, x);
  module->to(torch::kFloat64);
  const auto wide = x.to(torch::kFloat64);
  EXPECT_TRUE(near(output, module->forward(wide, wide, wide), 1e-6));
}

TEST(Mask, RealScoreBelowTheFillLosesToAMaskedOne_R14) {
  auto module = identity_attention(4, 2);
  const auto values = rows({{1, 1, 1, 1}, {2, 2, 2, 2}});
  const auto keys = rows({{-1e15, -1e15, -1e15, -1e15}, {0, 0, 0, 0}});
  const auto query = torch::full({1, 1, 4}, 1e15);
  EXPECT_TRUE(
      bit_equal(module->forward(values, keys, query, key_mask({1, 0})), rows({{2, 2, 2, 2}})));
}

TEST(Mask, CausalIsAlignedAtTheTopLeft_R25) {
  auto module = identity_attention(4, 2);
  const auto run = [&](int64_t query_length, int64_t key_length, const torch::Tensor& mask) {
    const auto values =
        torch::arange(1, key_length + 1, torch::kFloat32).view({1, -1, 1}).expand({1, -1, 4});
    return module
        ->forward(values, torch::zeros({1, key_length, 4}), torch::zeros({1, query_length, 4}),
                  mask)
        .select(2, 0)
        .flatten();
  };
  EXPECT_TRUE(near(run(2, 5, causal_mask(2, 5)), torch::tensor({1.0, 1.5}), 1e-6));
  EXPECT_TRUE(near(run(2, 5, torch::ones({2, 5}).tril(3)), torch::tensor({2.5, 3.0}), 1e-6));
  EXPECT_TRUE(near(run(5, 2, causal_mask(5, 2)), torch::tensor({1.0, 1.5, 1.5, 1.5, 1.5}), 1e-6));
  EXPECT_TRUE(near(run(5, 2, torch::ones({5, 2}).tril(-3)),
                   torch::tensor({1.5, 1.5, 1.5, 1.0, 1.5}), 1e-6));
}

TEST(Mask, ChangesTheResult_R27) {
  torch::manual_seed(0);
  SharedProjectionAttention module(8, 2);
  const auto x = torch::randn({1, 3, 8});
  const auto masked = module->forward(x, x, x, causal_mask(3, 3)).select(1, 0);
  const auto first = x.narrow(1, 0, 1);
  EXPECT_TRUE(near(masked, module->forward(first, first, first).select(1, 0), 1e-6));
  EXPECT_FALSE(near(masked, module->forward(x, x, x).select(1, 0), 1e-3));
}

TEST(Mask, NonFiniteMaskedKeyVanishes) {
  const auto right = attend({}, key_mask({1, 0}));
  for (const double bad : {kNaN, kInfinity, -kInfinity}) {
    TwoKeys input;
    input.keys = rows({{2, 0, 2, 0}, {bad, bad, bad, bad}});
    EXPECT_TRUE(bit_equal(attend(input, key_mask({1, 0})), right)) << bad;
  }
}

TEST(NonFinite, QueryOfNaNGivesNaNWhereAKeyIsKept_R68) {
  TwoKeys input;
  input.query = torch::full({1, 1, 4}, kNaN);
  EXPECT_TRUE(attend(input, {}).isnan().all().item<bool>());
  EXPECT_TRUE(attend(input, key_mask({0, 1})).isnan().all().item<bool>());
  EXPECT_TRUE(bit_equal(attend(input, key_mask({0, 0})), rows({{3, 4, 5, 6}})));
}

TEST(Gradients, AreFiniteUnderFullyMaskedRows_R64) {
  torch::manual_seed(0);
  SharedProjectionAttention module(8, 2);
  const auto x = torch::randn({2, 3, 8});
  auto mask = torch::ones({2, 1, 1, 3});
  mask[1].zero_();
  module->forward(x, x, x, mask)[0].sum().backward();
  for (const auto& parameter : module->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_TRUE(parameter.value().grad().isfinite().all().item<bool>()) << parameter.key();
  }
}

TEST(Gradients, ForwardModeIsTheDirectionalDerivative_R67) {
  torch::manual_seed(0);
  SharedProjectionAttention module(4, 2);
  module->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 3, 4}, torch::kFloat64);
  const auto direction = torch::randn_like(x);
  const auto mask = causal_mask(3, 3);
  const auto run = [&](const torch::Tensor& input) {
    return module->forward(input, input, input, mask);
  };
  const double step = 1e-6;
  const auto expected = (run(x + step * direction) - run(x - step * direction)) / (2 * step);
  EXPECT_TRUE(near(testing::forward_derivative(run, x, direction), expected, 1e-8));
}

TEST(Gradients, VmapRunsTheModuleOnEachSample_R67) {
  torch::manual_seed(0);
  SharedProjectionAttention module(4, 2);
  module->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const auto samples = torch::randn({5, 1, 3, 4}, torch::kFloat64);
  const auto run = [&](const torch::Tensor& x) {
    return module->forward(x, x, x, causal_mask(3, 3));
  };
  const auto results = testing::mapped(run, samples);
  ASSERT_EQ(results.sizes(), samples.sizes());
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(near(results[i], run(samples[i]), 1e-14));
  }
}

TEST(Output, LengthNeverShrinksUnderPadding_R70) {
  torch::manual_seed(0);
  SharedProjectionAttention module(8, 2);
  const auto x = torch::randn({2, 6, 8});
  const auto mask = mask_from_lengths(torch::ones({2}, torch::kInt64), 6);
  const auto trained = module->forward(x, x, x, mask);
  module->eval();
  const auto evaluated = module->forward(x, x, x, mask);
  EXPECT_EQ(trained.sizes(), (std::vector<int64_t>{2, 6, 8}));
  EXPECT_TRUE(bit_equal(trained, evaluated));
  const auto first = x.narrow(1, 0, 1);
  EXPECT_TRUE(bit_equal(evaluated, module->forward(first, first, first).expand({2, 6, 8})));
}

struct AnyModuleKind {
  const char* name;
  torch::Tensor (*forward)(const torch::Tensor& keys, const torch::Tensor& query);
  bool empty_batch_runs;
};

torch::Tensor run_shared(const torch::Tensor& keys, const torch::Tensor& query) {
  torch::manual_seed(0);
  SharedProjectionAttention module(8, 2);
  const auto output = module->forward(keys, keys, query);
  return output - module->fc_out->bias;
}
torch::Tensor run_full(const torch::Tensor& keys, const torch::Tensor& query) {
  torch::manual_seed(0);
  FullProjectionAttention module(8, 2);
  const auto output = module->forward(keys, keys, query);
  return output - module->output_linear->bias;
}
torch::Tensor run_inferred(const torch::Tensor& keys, const torch::Tensor& query) {
  torch::manual_seed(0);
  InferredLengthAttention module(8, 2);
  const auto output = module->forward(keys, keys, query);
  return output - module->fc_out->bias;
}

class EmptySequence : public ::testing::TestWithParam<AnyModuleKind> {};

TEST_P(EmptySequence, NoKeysGiveTheOutputBias) {
  EXPECT_TRUE(bit_equal(GetParam().forward(torch::randn({2, 0, 8}), torch::randn({2, 3, 8})),
                        torch::zeros({2, 3, 8})));
}

TEST_P(EmptySequence, NoQueriesGiveAnEmptyResult) {
  const auto output = GetParam().forward(torch::randn({2, 3, 8}), torch::randn({2, 0, 8}));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{2, 0, 8}));
}

TEST_P(EmptySequence, EmptyBatch) {
  const auto keys = torch::randn({0, 3, 8});
  if (GetParam().empty_batch_runs) {
    EXPECT_EQ(GetParam().forward(keys, keys).sizes(), (std::vector<int64_t>{0, 3, 8}));
  } else {
    EXPECT_TRUE(testing::throws<c10::ValueError>([&] { GetParam().forward(keys, keys); },
                                                 {"queries: expected a batch of at least one"}));
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, EmptySequence,
                         ::testing::Values(AnyModuleKind{"SharedProjection", run_shared, true},
                                           AnyModuleKind{"FullProjection", run_full, true},
                                           AnyModuleKind{"InferredLength", run_inferred, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Strides, DoNotChangeTheResult_R24) {
  torch::manual_seed(0);
  SharedProjectionAttention shared(8, 2);
  FullProjectionAttention full(8, 1);
  InferredLengthAttention inferred(8, 2);
  const std::vector<torch::Tensor> inputs = {
      torch::randn({3, 2, 8}).transpose(0, 1), torch::randn({2, 8, 3}).transpose(1, 2),
      torch::randn({1, 1, 8}).expand({2, 3, 8}), torch::randn({2, 3, 16}).slice(2, 0, 16, 2)};
  const auto mask = torch::ones({3, 3}).triu().transpose(0, 1);
  for (const auto& x : inputs) {
    const auto copy = x.contiguous();
    const std::vector<std::pair<torch::Tensor, torch::Tensor>> results = {
        {shared->forward(x, x, x, mask), shared->forward(copy, copy, copy, mask.contiguous())},
        {full->forward(x, {}, {}, mask), full->forward(copy, {}, {}, mask.contiguous())},
        {inferred->forward(x, x, x, mask), inferred->forward(copy, copy, copy, mask.contiguous())}};
    for (const auto& [strided, contiguous] : results) {
      EXPECT_TRUE(bit_equal(strided, contiguous)) << x.strides();
      EXPECT_TRUE(strided.is_contiguous());
    }
  }
}

}  // namespace
}  // namespace self_attention
