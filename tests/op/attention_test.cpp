// What attention() means beside the plain formula, what it refuses, and its other dispatch keys.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <self_attention/ops/attention.h>
#include <self_attention/ops/cpu_target.h>
#include <torch/cuda.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backends/aten/sdpa_attention.h"
#include "op/attention_inputs.h"
#include "support/tensor_matchers.h"
#include "support/use_target.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::Inputs;
using testing::make_inputs;
using testing::near;
using testing::run;
using testing::throws;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The same by the reference formula, in float64.
torch::Tensor expected(const Inputs& inputs, const torch::Tensor& mask = {}, bool causal = false) {
  return run({inputs.query.to(torch::kFloat64), inputs.key.to(torch::kFloat64),
              inputs.value.to(torch::kFloat64)},
             mask, causal);
}

/// Queries that take each way through the kernel: alone, and in blocks.
class EveryPath : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {
 protected:
  int64_t queries() const { return std::get<1>(GetParam()); }

 private:
  testing::UseTarget target_{std::get<0>(GetParam())};
};

TEST_P(EveryPath, RowsWithoutAKeyAttendToAllKeysEvenly) {
  const Inputs inputs = make_inputs(queries(), 70);
  const auto mean = inputs.value.to(torch::kFloat64).mean(2, true).expand({2, 3, queries(), 8});
  EXPECT_TRUE(near(run(inputs, torch::zeros({2, 1, 1, 70})), mean, 1e-6));
  EXPECT_TRUE(near(run(inputs, torch::zeros({queries(), 1})), mean, 1e-6));
  EXPECT_TRUE(near(run(inputs, torch::zeros({queries(), 70})), mean, 1e-6));
  // The first query sees key 0 alone, which the mask takes: even over all, the later ones too.
  auto mask = torch::ones({1, 1, 1, 70});
  mask.slice(3, 0, 1).zero_();
  const auto actual = run(inputs, mask, /*causal=*/true);
  EXPECT_TRUE(near(actual.select(2, 0), mean.select(2, 0), 1e-6));
  EXPECT_TRUE(near(actual, expected(inputs, mask, true), 4e-6));
}

TEST_P(EveryPath, WhatIsNotFiniteInAMaskedKeyVanishes) {
  Inputs inputs = make_inputs(queries(), 70);
  auto keep = torch::ones({70}, torch::kBool);
  keep.slice(0, 20, 23).fill_(false);
  const auto right = expected(inputs, keep);
  inputs.key = inputs.key.clone();
  inputs.key.select(2, 20).fill_(kNaN);
  inputs.key.select(2, 21).fill_(kInfinity);
  inputs.key.select(2, 22).fill_(-kInfinity);
  EXPECT_TRUE(near(run(inputs, keep), right, 4e-6));
  EXPECT_TRUE(near(run(inputs, keep.expand({queries(), 70}).contiguous()), right, 4e-6));
}

TEST_P(EveryPath, NaNInAQueryComesOutWhereItKeepsAKey) {
  Inputs inputs = make_inputs(queries(), 70);
  inputs.query = inputs.query.clone();
  inputs.query.select(2, 0).fill_(kNaN);
  EXPECT_TRUE(run(inputs).select(2, 0).isnan().all().item<bool>());
  const auto mean = inputs.value.mean(2);
  EXPECT_TRUE(near(run(inputs, torch::zeros({1})).select(2, 0), mean, 1e-6));
}

TEST_P(EveryPath, RealScoresBelowTheMaskedOnesLoseToThem) {
  // Masked keys among the others, and in the last part of the keys alone.
  for (const int64_t keys : {70, 600}) {
    Inputs inputs = make_inputs(queries(), keys);
    inputs.query = inputs.query.abs() + 1;
    inputs.key = inputs.key.clone();
    inputs.key.slice(2, 0, keys - 10).fill_(-1e25);
    auto keep = torch::ones({keys}, torch::kBool);
    keep.slice(0, keys - 10, keys).fill_(false);
    const auto masked =
        inputs.value.slice(2, keys - 10, keys).mean(2, true).expand({2, 3, queries(), 8});
    EXPECT_TRUE(near(run(inputs, keep), masked, 1e-5));
    EXPECT_TRUE(near(run(inputs, keep.expand({queries(), keys}).contiguous()), masked, 1e-5));
    EXPECT_TRUE(near(run(inputs, keep, true), expected(inputs, keep, true), 1e-5));
  }
}

TEST_P(EveryPath, HugeEqualScoresWeighEvenly) {
  Inputs inputs = make_inputs(queries(), 70);
  inputs.query = torch::full_like(inputs.query, 3.3);
  for (const double huge : {1e12, -1e12, 7e22, -7e22}) {
    inputs.key = torch::full_like(inputs.key, huge);
    const auto mean = inputs.value.mean(2, true).expand({2, 3, queries(), 8});
    EXPECT_TRUE(near(run(inputs), mean, 1e-6)) << huge;
  }
}

TEST_P(EveryPath, InfiniteScoresGiveWhatTheFormulaGives) {
  Inputs inputs = make_inputs(queries(), 600);
  inputs.query = inputs.query.abs() + 1;
  inputs.key = inputs.key.clone();
  inputs.key.slice(2, 0, 300).fill_(-kInfinity);  // whole blocks, which weigh nothing
  EXPECT_TRUE(near(run(inputs), expected(inputs), 4e-6));
  inputs.key.fill_(-kInfinity);
  EXPECT_TRUE(run(inputs).isnan().all().item<bool>());
  inputs.key.fill_(kInfinity);
  EXPECT_TRUE(run(inputs).isnan().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(, EveryPath,
                         ::testing::Combine(::testing::ValuesIn(cpu_targets()),
                                            ::testing::Values(1, 3, 60)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Attention, EmptySequences) {
  const Inputs none = {torch::randn({2, 3, 5, 8}), torch::randn({2, 3, 0, 8}),
                       torch::randn({2, 3, 0, 4})};
  EXPECT_TRUE(bit_equal(run(none), torch::zeros({2, 3, 5, 4})));
  EXPECT_TRUE(bit_equal(run(none, torch::ones({5, 0})), torch::zeros({2, 3, 5, 4})));
  EXPECT_EQ(
      run({torch::randn({2, 3, 0, 8}), torch::randn({2, 3, 4, 8}), torch::randn({2, 3, 4, 8})})
          .sizes(),
      (std::vector<int64_t>{2, 3, 0, 8}));
  EXPECT_EQ(
      run({torch::randn({0, 3, 2, 8}), torch::randn({0, 3, 4, 8}), torch::randn({0, 3, 4, 8})})
          .sizes(),
      (std::vector<int64_t>{0, 3, 2, 8}));
}

TEST(Attention, ResultIsLaidOutForMergingTheHeads) {
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kFloat16}) {
    const auto output = run(make_inputs(6, 9, dtype));
    EXPECT_EQ(output.scalar_type(), dtype);
    EXPECT_TRUE(output.transpose(1, 2).is_contiguous());
  }
}

TEST(Attention, SaysWhichKernelRunsAndWhyNotTheFusedOne) {
  const Inputs inputs = make_inputs(2, 2);
  const auto kernel = [&](torch::ScalarType type, double scale) {
    return attention_kernel(inputs.query.to(type), inputs.key.to(type), inputs.value.to(type), {},
                            AttentionOptions(scale));
  };
  EXPECT_EQ(kernel(torch::kFloat32, 0.5).name, "cpu/" + cpu_target());
  EXPECT_EQ(kernel(torch::kFloat32, 0.5).reason, "");
  EXPECT_EQ(kernel(torch::kFloat64, 0.5).name, "reference");
  EXPECT_EQ(kernel(torch::kFloat64, 0.5).reason,
            "it takes float32, bfloat16 and float16, the tensors are float64");
  EXPECT_EQ(kernel(torch::kFloat32, 1e-17).name, "reference");
  EXPECT_EQ(kernel(torch::kFloat32, 1e20).name, "reference");
  const auto many = torch::zeros({1, 1, 1, 8}).expand({1, 1, (int64_t{1} << 32) + 1, 8});
  EXPECT_EQ(attention_kernel(inputs.query.slice(0, 0, 1).slice(1, 0, 1), many, many, {},
                             AttentionOptions(1))
                .reason,
            "it takes at most 2^32 keys");
}

TEST(Attention, TinyScalesFollowTheFormula) {
  const Inputs inputs = make_inputs(4, 6);
  const auto mask = torch::tensor({1, 1, 1, 0, 0, 0});
  const auto call = [&](const Inputs& in) {
    return attention(in.query, in.key, in.value, mask, AttentionOptions(1e-20));
  };
  EXPECT_TRUE(near(call(inputs),
                   call({inputs.query.to(torch::kFloat64), inputs.key.to(torch::kFloat64),
                         inputs.value.to(torch::kFloat64)}),
                   1e-5));
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Inputs in = make_inputs(4, 6);
  const AttentionOptions options(0.5);
  const auto call = [&](const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const torch::Tensor& mask = {}) {
    return [=] { attention(q, k, v, mask, options); };
  };
  EXPECT_TRUE(throws<c10::ValueError>(call({}, in.key, in.value),
                                      {"[attention] query: expected a tensor, got an undefined"}));
  EXPECT_TRUE(
      throws<c10::ValueError>(call(in.query[0], in.key, in.value),
                              {"[attention] query: expected shape (N, H, Q, d), got (3, 4, 8)"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      call(in.query.slice(3, 0, 0), in.key.slice(3, 0, 0), in.value),
      {"[attention] query: expected shape (N, H, Q, d), got (2, 3, 4, 0)"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      call(in.query, in.key.slice(3, 0, 7), in.value),
      {"[attention] key: expected shape (N=2, H=3, K, d=8), got (2, 3, 6, 7)"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      call(in.query, in.key, in.value.slice(2, 0, 1)),
      {"[attention] value: expected shape (N=2, H=3, K=6, dv), got (2, 3, 1, 8)"}));
  EXPECT_TRUE(throws<c10::TypeError>(
      call(in.query, in.key.to(torch::kFloat64), in.value),
      {"[attention] key: expected float32, the dtype of query, got float64"}));
  EXPECT_TRUE(throws<c10::TypeError>(
      call(in.query.to(torch::kInt64), in.key.to(torch::kInt64), in.value.to(torch::kInt64)),
      {"[attention] query: expected float64, float32, bfloat16 or float16, got int64"}));
  EXPECT_TRUE(throws<c10::ValueError>(call(in.query, in.key, in.value, torch::ones({2, 6})),
                                      {"[attention] mask: expected a shape that broadcasts to"}));
  EXPECT_TRUE(
      throws<c10::ValueError>(call(in.query.to(torch::kMeta), in.key, in.value),
                              {"[attention] key: expected device meta, that of query, got cpu"}));
  for (const double scale : {0.0, -0.5, kNaN, kInfinity}) {
    EXPECT_TRUE(throws<c10::ValueError>(
        [&] { attention(in.query, in.key, in.value, {}, AttentionOptions(scale)); },
        {"[attention] scale: expected a finite number above 0, got"}));
  }
}

TEST(Attention, MetaTensorsGiveTheShape) {
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  const auto output = run({torch::empty({2, 3, 5, 8}, meta), torch::empty({2, 3, 7, 8}, meta),
                           torch::empty({2, 3, 7, 4}, meta)});
  EXPECT_TRUE(output.is_meta());
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{2, 3, 5, 4}));
  EXPECT_TRUE(output.transpose(1, 2).is_contiguous());
}

TEST(Attention, AutocastCastsInputsAndNotTheMask) {
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Inputs inputs = make_inputs(5, 7);
  const auto mask = torch::tensor({1e-30, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0}, torch::kFloat64);
  const auto output = run(inputs, mask);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(near(output, expected(inputs, mask), 3e-2));
}

/// LibTorch's SDPA as CUDA gets it, on CPU tensors, and by the op where there is a CUDA device.
class SdpaAttention : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  static torch::Tensor attention_on_device(const Inputs& inputs, const torch::Tensor& mask,
                                           bool causal) {
    if (GetParam() == at::kCPU) {
      return aten::attention({inputs.query, inputs.key, inputs.value, mask, 0.35, causal});
    }
    const auto move = [](const torch::Tensor& tensor) { return tensor.to(GetParam()); };
    return run({move(inputs.query), move(inputs.key), move(inputs.value)},
               mask.defined() ? move(mask) : mask, causal);
  }
};

TEST_P(SdpaAttention, EqualsTheFormula) {
  for (const bool causal : {false, true}) {
    const Inputs inputs = make_inputs(5, 7);
    for (const auto& mask :
         {torch::Tensor(), torch::rand({2, 1, 1, 7}) > 0.4, torch::zeros({7}),
          torch::rand({5, 1}) > 0.5, torch::rand({2, 3, 5, 7}), torch::ones({})}) {
      const auto output = attention_on_device(inputs, mask, causal);
      EXPECT_TRUE(near(output, expected(inputs, mask, causal), 4e-6))
          << causal << " " << (mask.defined() ? c10::str(mask.sizes()) : "no mask");
      EXPECT_TRUE(output.transpose(1, 2).is_contiguous());
    }
  }
  const Inputs none = {torch::randn({2, 3, 5, 8}), torch::randn({2, 3, 0, 8}),
                       torch::randn({2, 3, 0, 4})};
  EXPECT_TRUE(bit_equal(attention_on_device(none, {}, true), torch::zeros({2, 3, 5, 4})));
}

TEST_P(SdpaAttention, IgnoresKeysThatNoQueryKeeps) {
  Inputs inputs = make_inputs(5, 7);
  const auto mask = torch::tensor({1, 1, 1, 1, 1, 1, 0});
  const auto right = expected(inputs, mask);
  inputs.key = inputs.key.clone();
  inputs.key.select(2, 6).fill_(kNaN);
  EXPECT_TRUE(near(attention_on_device(inputs, mask, false), right, 4e-6));
}

INSTANTIATE_TEST_SUITE_P(, SdpaAttention,
                         ::testing::ValuesIn(torch::cuda::is_available()
                                                 ? std::vector{at::kCPU, at::kCUDA}
                                                 : std::vector{at::kCPU}),
                         [](const auto& info) { return c10::DeviceTypeName(info.param, true); });

TEST(CpuTarget, IsChosenByName) {
  const auto targets = cpu_targets();
  EXPECT_EQ(targets.back(), "scalar");
  for (const auto& name : targets) {
    set_cpu_target(name);
    EXPECT_EQ(cpu_target(), name);
  }
  EXPECT_TRUE(
      throws<c10::ValueError>([] { set_cpu_target("avx9"); },
                              {"[set_cpu_target] name: expected one of ", "scalar, got avx9"}));
  EXPECT_EQ(cpu_target(), "scalar");
  set_cpu_target(targets.front());
}

}  // namespace
}  // namespace self_attention
