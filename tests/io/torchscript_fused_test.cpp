// Archives that call the library's ops: the module's own numbers, in every form.

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>
#include <set>

#include "io/exported.h"
#include "io/input_file.h"
#include "io/script_call.h"
#include "io/tensor_index.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::Call;
using testing::expect_same;
using testing::operators;
using testing::parameters_of;
using testing::raises;
using testing::results;
using testing::run;
using testing::throws;

ExportOptions fused() { return ExportOptions().ops(ScriptOps::kFused); }

class FusedArchive : public testing::ExportTest {
 protected:
  /// Outputs and gradients of the first calls and, without gradients, of later ones.
  template <typename Holder>
  void compare(Holder module, const ExportOptions& options, const Call& call, bool masked) {
    auto script = exported(module, options);
    const auto inputs = call.inputs(masked);
    const auto forward = [&] {
      return module->forward(inputs[0], inputs[1], inputs[2], inputs[3]);
    };
    const auto leaves = [&](const std::vector<torch::Tensor>& parameters) {
      std::vector<torch::Tensor> all = {call.values, call.keys, call.query};
      all.insert(all.end(), parameters.begin(), parameters.end());
      return all;
    };
    for (int i = 0; i < 3; ++i) {
      expect_same(results(run(script, inputs), leaves(parameters_of(script))),
                  results(forward(), leaves(module->parameters())));
    }
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(run(script, inputs), forward()));
  }
};

class FusedDtype : public FusedArchive, public ::testing::WithParamInterface<torch::ScalarType> {
 protected:
  template <typename Holder>
  void compare_forms(Holder module) {
    module->to(GetParam());
    const Call call(GetParam());
    compare(module, fused(), call, true);
    compare(module, fused().mask(ScriptMask::kNone), call, false);
    for (const bool masked : {false, true}) {
      compare(module, fused().mask(ScriptMask::kOptional), call, masked);
    }
  }
};

TEST_P(FusedDtype, SharedProjectionIsTheModule) { compare_forms(SharedProjectionAttention(8, 2)); }
TEST_P(FusedDtype, FullProjectionIsTheModule) { compare_forms(FullProjectionAttention(8, 2)); }
TEST_P(FusedDtype, InferredLengthIsTheModule) { compare_forms(InferredLengthAttention(8, 2)); }

TEST_P(FusedDtype, SelfAttentionIsTheModule) {
  FullProjectionAttention module(8, 2);
  module->to(GetParam());
  const auto single = fused().inputs(ScriptInputs::kSingle);
  auto plain = exported(module, ExportOptions(single).mask(ScriptMask::kNone));
  auto masked = exported(module, single);
  const Call call(GetParam(), 5, 5);
  const std::vector<torch::Tensor> leaves = {call.values};
  for (int i = 0; i < 3; ++i) {
    expect_same(results(run(plain, {call.values}), leaves),
                results(module->forward(call.values), leaves));
    expect_same(results(run(masked, {call.values, call.mask}), leaves),
                results(module->forward(call.values, {}, {}, call.mask), leaves));
  }
}

TEST_P(FusedDtype, FrozenIsTheModuleWithConstants) {
  InferredLengthAttention module(8, 2);
  module->to(GetParam());
  auto frozen = exported(module, fused().freeze(true));
  EXPECT_EQ(frozen.parameters().size(), 0);
  for (torch::Tensor& parameter : module->parameters()) parameter.set_requires_grad(false);
  const Call call(GetParam());
  const std::vector<torch::Tensor> leaves = {call.values, call.keys, call.query};
  for (int i = 0; i < 3; ++i) {
    expect_same(results(run(frozen, call.inputs(true)), leaves),
                results(module->forward(call.values, call.keys, call.query, call.mask), leaves));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FusedDtype,
                         ::testing::Values(torch::kFloat64, torch::kFloat32, torch::kBFloat16,
                                           torch::kFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_F(FusedArchive, TakesCausalFromTheModule) {
  const Call call;
  compare(SharedProjectionAttention(SharedProjectionAttentionOptions(8, 2).is_causal(true)),
          fused(), call, true);
  FullProjectionAttention full(FullProjectionAttentionOptions(8, 2).is_causal(true));
  compare(full, fused().mask(ScriptMask::kNone), call, false);
  EXPECT_TRUE(throws<c10::ValueError>([&] { export_torchscript(*full, path("a.pt")); },
                                      {"[export_torchscript] ops: expected fused for a module with "
                                       "is_causal",
                                       "causal_mask", "got portable"}));
}

TEST_F(FusedArchive, HoldsTheOpAlone) {
  const auto expect_alone = [&](const auto& module, const ExportOptions& options,
                                const std::string& name) {
    const auto found = operators(exported(module, options));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found.begin()->starts_with("self_attention::" + name + "("));
  };
  for (const bool freezes : {false, true}) {
    for (const auto mask : {ScriptMask::kRequired, ScriptMask::kNone, ScriptMask::kOptional}) {
      const auto options = fused().mask(mask).freeze(freezes);
      expect_alone(SharedProjectionAttention(8, 2), options, "shared_projection_attention");
      expect_alone(InferredLengthAttention(8, 2), options, "inferred_length_attention");
      expect_alone(FullProjectionAttention(8, 2), options, "full_projection_attention");
      expect_alone(FullProjectionAttention(8, 2),
                   ExportOptions(options).inputs(ScriptInputs::kSingle),
                   "full_projection_attention");
    }
  }
}

TEST_F(FusedArchive, SaysWhatItNeeds) {
  exported(FullProjectionAttention(FullProjectionAttentionOptions(8, 2).is_causal(true)), fused());
  auto metadata = io::read_tensor_index(io::InputFile(path("model.pt"))).metadata;
  EXPECT_EQ(metadata["ops"], "fused");
  EXPECT_EQ(metadata["is_causal"], "true");
  EXPECT_EQ(metadata["operator"], "self_attention::full_projection_attention");
  EXPECT_TRUE(metadata["needs"].starts_with("libself_attention.so")) << metadata["needs"];
}

TEST_F(FusedArchive, IsAStateDictToo) {
  const FullProjectionAttention saved(8, 2);
  exported(saved, fused());
  FullProjectionAttention loaded(8, 2);
  EXPECT_TRUE(load_state_dict(*loaded, path("model.pt")).matches());
  for (const auto& parameter : saved->named_parameters()) {
    EXPECT_TRUE(bit_equal(loaded->named_parameters()[parameter.key()], parameter.value()));
  }
}

TEST_F(FusedArchive, TheOpRefusesByName) {
  auto script = exported(FullProjectionAttention(8, 2), fused());
  const Call call;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(raises(
        [&] {
          run(script, {call.values, call.keys, call.query.slice(2, 0, 4), call.mask});
        },
        {"[full_projection_attention] query: expected shape (N, Q, E=8), got (2, 3, 4)"}));
    EXPECT_TRUE(raises(
        [&] {
          run(script, {call.values, call.keys, call.query, torch::ones({2, 5})});
        },
        {"[full_projection_attention] mask: expected a shape that broadcasts to"}));
    run(script, call.inputs(true));
  }
}

}  // namespace
}  // namespace self_attention
