// What an exported archive computes: the numbers of its module, in every form.

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <thread>

#include "io/exported.h"
#include "io/script_call.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::Call;
using testing::eager;
using testing::expect_same;
using testing::parameters_of;
using testing::raises;
using testing::results;
using testing::run;

class TorchScript : public testing::ExportTest {};

/// The archive in every form of a mask, against the module: outputs and gradients of the first
/// call, outputs of those that run optimised code.
template <typename Holder>
void compare(Holder module, torch::jit::Module script, bool masked, torch::ScalarType dtype) {
  const Call call(dtype);
  const auto inputs = call.inputs(masked);
  std::vector<torch::Tensor> leaves = {call.values, call.keys, call.query};
  const auto with = [&](std::vector<torch::Tensor> more) {
    std::vector<torch::Tensor> all = leaves;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto expected = results(module->forward(inputs[0], inputs[1], inputs[2], inputs[3]),
                                with(module->parameters()));
  expect_same(results(run(script, inputs), with(parameters_of(script))), expected);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(run(script, inputs), expected.front()));
}

class EveryDtype : public TorchScript, public ::testing::WithParamInterface<torch::ScalarType> {
 protected:
  template <typename Holder>
  void compare_forms(Holder module) {
    eager(module)->to(GetParam());
    for (const auto mask : {ScriptMask::kRequired, ScriptMask::kNone, ScriptMask::kOptional}) {
      const auto options = ExportOptions().mask(mask);
      if (mask != ScriptMask::kNone) {
        compare(module, exported(module, options), true, GetParam());
      }
      if (mask != ScriptMask::kRequired) {
        compare(module, exported(module, options), false, GetParam());
      }
    }
  }
};

TEST_P(EveryDtype, SharedProjectionIsBitEqual) { compare_forms(SharedProjectionAttention(8, 2)); }
TEST_P(EveryDtype, FullProjectionIsBitEqual) { compare_forms(FullProjectionAttention(8, 2)); }
TEST_P(EveryDtype, OneFullProjectionIsBitEqual) { compare_forms(FullProjectionAttention(8, 1)); }
TEST_P(EveryDtype, InferredLengthIsBitEqual) { compare_forms(InferredLengthAttention(8, 2)); }
TEST_P(EveryDtype, HeadsOfOneFeatureAreBitEqual) { compare_forms(SharedProjectionAttention(8, 8)); }

TEST_P(EveryDtype, SelfAttentionIsBitEqual) {
  auto module = eager(FullProjectionAttention(8, 2));
  module->to(GetParam());
  auto plain =
      exported(module, ExportOptions().inputs(ScriptInputs::kSingle).mask(ScriptMask::kNone));
  auto masked = exported(module, ExportOptions().inputs(ScriptInputs::kSingle));
  const Call call(GetParam(), 5, 5);
  const std::vector<torch::Tensor> leaves = {call.values};
  expect_same(results(run(plain, {call.values}), leaves),
              results(module->forward(call.values), leaves));
  expect_same(results(run(masked, {call.values, call.mask}), leaves),
              results(module->forward(call.values, {}, {}, call.mask), leaves));
}

TEST_P(EveryDtype, LoadedArchivesMayBeConverted) {
  auto module = eager(SharedProjectionAttention(8, 2));
  auto script = exported(module);
  module->to(GetParam());
  script.to(GetParam());
  const Call call(GetParam());
  EXPECT_TRUE(bit_equal(run(script, call.inputs(true)),
                        module->forward(call.values, call.keys, call.query, call.mask)));
}

TEST_P(EveryDtype, FrozenAndSavedAgainIsBitEqual) {
  auto module = eager(InferredLengthAttention(8, 2));
  module->to(GetParam());
  const Call call(GetParam());
  const auto expected = module->forward(call.values, call.keys, call.query, call.mask);
  auto frozen = exported(module, ExportOptions().freeze(true));
  EXPECT_EQ(frozen.parameters().size(), 0);
  EXPECT_TRUE(bit_equal(run(frozen, call.inputs(true)), expected));
  frozen.save(path("again.pt"));
  auto again = torch::jit::load(path("again.pt"));
  auto whole = exported(module);
  whole.eval();
  whole.save(path("whole.pt"));
  auto refrozen = torch::jit::freeze(torch::jit::load(path("whole.pt")), std::nullopt, false);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(bit_equal(run(again, call.inputs(true)), expected));
    EXPECT_TRUE(bit_equal(run(refrozen, call.inputs(true)), expected));
  }
  const std::vector<torch::Tensor> leaves = {call.values, call.keys, call.query};
  expect_same(results(run(again, call.inputs(true)), leaves), results(expected, leaves));
}

INSTANTIATE_TEST_SUITE_P(All, EveryDtype,
                         ::testing::Values(torch::kFloat64, torch::kFloat32, torch::kBFloat16,
                                           torch::kFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_F(TorchScript, GradientsStayEqualInOptimisedCode) {
  auto module = eager(SharedProjectionAttention(8, 2));
  auto script = exported(module);
  for (int i = 0; i < 5; ++i) {
    const Call call;
    std::vector<torch::Tensor> leaves = {call.values, call.keys, call.query};
    const auto with = [&](const std::vector<torch::Tensor>& more) {
      std::vector<torch::Tensor> all = leaves;
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    expect_same(results(run(script, call.inputs(true)), with(parameters_of(script))),
                results(module->forward(call.values, call.keys, call.query, call.mask),
                        with(module->parameters())));
  }
}

TEST_F(TorchScript, ArgumentsAreTensorsInPythonsOrder_R49_R50) {
  const auto arguments = [](const torch::jit::Module& module) {
    std::string text;
    for (const auto& argument : module.get_method("forward").function().getSchema().arguments()) {
      if (argument.name() == "self") continue;
      text += (text.empty() ? "" : ", ") + argument.type()->str() + " " + argument.name();
    }
    return text;
  };
  const SharedProjectionAttention shared(8, 2);
  const FullProjectionAttention full(8, 2);
  const InferredLengthAttention inferred(8, 2);
  const auto none = ExportOptions().mask(ScriptMask::kNone);
  const auto optional = ExportOptions().mask(ScriptMask::kOptional);
  const auto single = ExportOptions().inputs(ScriptInputs::kSingle);
  EXPECT_EQ(arguments(exported(shared)), "Tensor values, Tensor keys, Tensor query, Tensor mask");
  EXPECT_EQ(arguments(exported(shared, none)), "Tensor values, Tensor keys, Tensor query");
  EXPECT_EQ(arguments(exported(shared, optional)),
            "Tensor values, Tensor keys, Tensor query, Tensor? mask");
  EXPECT_EQ(arguments(exported(full, none)), "Tensor values, Tensor keys, Tensor query");
  EXPECT_EQ(arguments(exported(full, single)), "Tensor x, Tensor mask");
  EXPECT_EQ(arguments(exported(full, ExportOptions(single).mask(ScriptMask::kNone))), "Tensor x");
  EXPECT_EQ(arguments(exported(inferred)),
            "Tensor values, Tensor keys, Tensor queries, Tensor mask");
}

TEST_F(TorchScript, OptionalMaskMayBeLeftOutOrNone_R51) {
  auto module = eager(SharedProjectionAttention(8, 2));
  auto script = exported(module, ExportOptions().mask(ScriptMask::kOptional));
  const Call call;
  const auto plain = module->forward(call.values, call.keys, call.query);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(bit_equal(run(script, call.inputs(false)), plain));
    EXPECT_TRUE(bit_equal(
        script.forward({call.values, call.keys, call.query, torch::jit::IValue()}).toTensor(),
        plain));
    EXPECT_TRUE(bit_equal(run(script, call.inputs(true)),
                          module->forward(call.values, call.keys, call.query, call.mask)));
  }
  auto required = exported(module);
  EXPECT_TRUE(raises([&] { run(required, call.inputs(false)); }, {"mask"}));
}

TEST_F(TorchScript, LengthsAndMasksAreNotFrozenIn_R52) {
  auto module = eager(SharedProjectionAttention(8, 2));
  auto script = exported(module, ExportOptions().freeze(true));
  for (int i = 0; i < 3; ++i) run(script, Call(torch::kFloat32, 3, 3).inputs(true));
  const Call other(torch::kFloat32, 7, 5);
  for (const auto& mask : {other.mask, torch::rand({7, 5}) > 0.3, torch::rand({2, 2, 7, 5}) > 0.3,
                           torch::rand({1, 2, 1, 5}) > 0.3, torch::tensor(1)}) {
    EXPECT_TRUE(bit_equal(run(script, {other.values, other.keys, other.query, mask}),
                          module->forward(other.values, other.keys, other.query, mask)))
        << mask.sizes();
  }
}

TEST_F(TorchScript, FirstCallsAndNewLengthsAgree_R59) {
  SharedProjectionAttention module(SharedProjectionAttentionOptions(64, 4).backend(Backend::Eager));
  for (const bool optimises : {true, false}) {
    torch::jit::setGraphExecutorOptimize(optimises);
    auto script = exported(module);
    const torch::NoGradGuard no_grad;
    for (const int64_t length : {6, 6, 6, 6, 6, 1, 17, 40}) {
      const auto x = torch::randn({2, length, 64});
      const auto mask = torch::ones({length, length}).tril();
      EXPECT_TRUE(bit_equal(run(script, {x, x, x, mask}), module->forward(x, x, x, mask)))
          << length;
    }
  }
  torch::jit::setGraphExecutorOptimize(true);
}

TEST_F(TorchScript, ThreadsMayShareAnArchive_R60) {
  const int threads_before = at::get_num_threads();
  at::set_num_threads(1);
  auto script = exported(SharedProjectionAttention(8, 2));
  const Call call;
  torch::Tensor expected;
  {
    const torch::NoGradGuard no_grad;
    expected = run(script, call.inputs(true));
  }
  std::vector<int> equal(8, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      at::set_num_threads(1);
      for (int i = 0; i < 100; ++i) count += torch::equal(run(script, call.inputs(true)), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(8, 100));
  at::set_num_threads(threads_before);
}

TEST_F(TorchScript, EmptySequencesAndBatches) {
  SharedProjectionAttention shared(8, 2);
  InferredLengthAttention inferred(8, 2);
  auto shared_script = exported(shared, ExportOptions().mask(ScriptMask::kOptional));
  auto inferred_script = exported(inferred, ExportOptions().mask(ScriptMask::kOptional));
  for (const auto& [queries, keys] : {std::pair{3, 0}, {0, 5}, {0, 0}}) {
    const Call call(torch::kFloat32, queries, keys);
    for (const bool masked : {false, true}) {
      const auto inputs = call.inputs(masked);
      EXPECT_TRUE(bit_equal(run(shared_script, inputs),
                            shared->forward(inputs[0], inputs[1], inputs[2], inputs[3])));
      EXPECT_TRUE(bit_equal(run(inferred_script, inputs),
                            inferred->forward(inputs[0], inputs[1], inputs[2], inputs[3])));
    }
  }
  const auto nothing = torch::empty({0, 3, 8});
  EXPECT_EQ(run(shared_script, {nothing, nothing, nothing}).sizes(), nothing.sizes());
  EXPECT_TRUE(raises(
      [&] {
        run(inferred_script, {nothing, nothing, nothing});
      },
      {"[InferredLengthAttention] queries: expected a batch of at least one"}));
}

TEST_F(TorchScript, AutocastMayBeOn) {
  SharedProjectionAttention module(8, 2);
  auto script = exported(module);
  const Call call;
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto actual = run(script, call.inputs(true));
    const auto expected = module->forward(call.values, call.keys, call.query, call.mask);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(actual.scalar_type(), dtype);
    // TorchScript casts by lists of its own.
    EXPECT_TRUE(testing::near(actual, expected, 2e-2)) << dtype;
  }
}

TEST_F(TorchScript, WhatDoesNotFitIsRefusedByName) {
  for (const bool freezes : {false, true}) {
    auto script = exported(FullProjectionAttention(8, 2), ExportOptions().freeze(freezes));
    const Call call;
    const std::string who = "ValueError: [FullProjectionAttention] ";
    // Before the first call compiles, and after the last one has.
    for (int i = 0; i < 4; ++i) {
      const auto refused = [&](std::vector<torch::Tensor> inputs, const std::string& words) {
        return raises([&] { run(script, inputs); }, {who + words});
      };
      EXPECT_TRUE(refused({call.values, call.keys, call.query.slice(2, 0, 4), call.mask},
                          "query: expected shape (N, Q, E=8), got (2, 3, 4)"));
      EXPECT_TRUE(refused({call.values, call.keys, torch::ones({8}), call.mask},
                          "query: expected shape (N, Q, E=8), got (8,)"));
      EXPECT_TRUE(refused({call.values, call.keys, torch::tensor(1.0), call.mask},
                          "query: expected shape (N, Q, E=8), got ()"));
      EXPECT_TRUE(refused({call.values.slice(1, 0, 1), call.keys, call.query, call.mask},
                          "values: expected as many positions as keys, K=5, got 1 in (2, 1, 8)"));
      EXPECT_TRUE(refused({call.values, call.keys.slice(0, 0, 1), call.query, call.mask},
                          "keys: expected shape (N=2, K, E=8), got (1, 5, 8)"));
      EXPECT_TRUE(refused({call.values, call.keys, call.query, torch::ones({2, 5})},
                          "mask: expected a shape that broadcasts to (N=2, H=2, Q=3, K=5), got "
                          "(2, 5); a padding mask is (2, 1, 1, 5)"));
      EXPECT_TRUE(
          refused({call.values, call.keys, call.query, torch::ones({1, 1, 1, 1, 5})}, "mask: "));
      run(script, call.inputs(true));
    }
  }
}

}  // namespace
}  // namespace self_attention
