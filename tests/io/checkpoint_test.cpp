// State dicts in and out of modules.

#include <gtest/gtest.h>
#include <self_attention/io/checkpoint.h>
#include <self_attention/self_attention.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using testing::throws;

/// Every parameter and buffer, detached copies.
std::vector<torch::Tensor> contents(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tensors;
  for (const auto& list : {module.parameters(), module.buffers()}) {
    for (const auto& tensor : list) tensors.push_back(tensor.detach().clone());
  }
  return tensors;
}

::testing::AssertionResult same_contents(const std::vector<torch::Tensor>& actual,
                                         const std::vector<torch::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (const auto same = bit_equal(actual.at(i), expected[i]); !same) return same;
  }
  return ::testing::AssertionSuccess();
}

/// An attention layer inside a larger module, with a buffer of integers.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl() {
    attention = register_module("attn", FullProjectionAttention(8, 2));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
  }
  FullProjectionAttention attention{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Block);

class Checkpoint : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

 private:
  io_test::TemporaryFolder folder_;
};

class EveryFormat : public Checkpoint, public ::testing::WithParamInterface<const char*> {};

TEST_P(EveryFormat, RoundTripIsBitEqual) {
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    Block saved;
    saved->to(dtype);
    save_state_dict(*saved, path(GetParam()));
    Block loaded;
    loaded->to(dtype);
    const auto report = load_state_dict(*loaded, path(GetParam()));
    EXPECT_TRUE(report.matches());
    EXPECT_EQ(report.text(), "");
    EXPECT_TRUE(same_contents(contents(*loaded), contents(*saved))) << dtype;
    EXPECT_TRUE(loaded->parameters().front().requires_grad());
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EveryFormat, ::testing::Values("a.pt", "a.pth", "a.safetensors"),
                         [](const auto& info) { return std::string(info.param).substr(2); });

TEST_F(Checkpoint, ReadsWhatTorchSaveOfCppWrites) {
  Block saved;
  torch::save(saved, path("cpp.pt"));
  Block loaded;
  EXPECT_TRUE(load_state_dict(*loaded, path("cpp.pt")).matches());
  EXPECT_TRUE(same_contents(contents(*loaded), contents(*saved)));
}

TEST_F(Checkpoint, LiftsALayerByItsPrefix) {
  Block saved;
  save_state_dict(*saved, path("block.pt"));
  FullProjectionAttention lifted(8, 2);
  load_state_dict(*lifted, path("block.pt"), LoadStateDictOptions().strip_prefix("attn."));
  EXPECT_TRUE(same_contents(contents(*lifted), contents(*saved->attention)));

  save_state_dict(*lifted, path("layer.safetensors"));
  Block block;
  const auto report =
      load_state_dict(*block, path("layer.safetensors"),
                      LoadStateDictOptions().strict(false).map_prefixes({{"", "attn."}}));
  EXPECT_TRUE(same_contents(contents(*block->attention), contents(*saved->attention)));
  EXPECT_EQ(report.missing.size(), 5);
  EXPECT_TRUE(report.unexpected.empty());
}

TEST_F(Checkpoint, TheLongestPrefixDecides) {
  const FullProjectionAttention saved(8, 2);
  save_state_dict(*saved, path("a.pt"));
  FullProjectionAttention loaded(8, 2);
  load_state_dict(*loaded, path("a.pt"),
                  LoadStateDictOptions().map_prefixes({{"k", "nowhere."},
                                                       {"k_linear.", "v_linear."},
                                                       {"v", "nowhere."},
                                                       {"v_linear.", "k_linear."}}));
  EXPECT_TRUE(bit_equal(loaded->v_linear->weight, saved->k_linear->weight));
  EXPECT_TRUE(bit_equal(loaded->k_linear->bias, saved->v_linear->bias));
}

TEST_F(Checkpoint, EveryDifferenceIsReportedAndNothingIsTouched) {
  save_state_dict(*SharedProjectionAttention(8, 2), path("shared.pt"));
  SharedProjectionAttention other(8, 4);
  other->fc_out->to(torch::kFloat64);
  const auto before = contents(*other);
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { load_state_dict(*other, path("shared.pt")); },
      {"[load_state_dict] file: expected the state dict of", "SharedProjectionAttention",
       "shared.pt", "values.weight: expected float32 (2, 2), got float32 (4, 4)",
       "fc_out.weight: expected float64 (8, 8), got float32 (8, 8)"}));
  FullProjectionAttention full(8, 2);
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { load_state_dict(*full, path("shared.pt")); },
                              {"missing: ", "q_linear.weight", "unexpected: ", "fc_out.bias"}));
  EXPECT_TRUE(same_contents(contents(*other), before));

  const auto report =
      load_state_dict(*other, path("shared.pt"), LoadStateDictOptions().strict(false));
  EXPECT_EQ(report.mismatched.size(), 5);
  EXPECT_TRUE(same_contents(contents(*other), before));
}

TEST_F(Checkpoint, DtypesAreConvertedOnRequest) {
  SharedProjectionAttention saved(8, 2);
  save_state_dict(*saved, path("narrow.safetensors"));
  SharedProjectionAttention wide(8, 2);
  wide->to(torch::kFloat64);
  EXPECT_TRUE(throws<c10::ValueError>([&] { load_state_dict(*wide, path("narrow.safetensors")); },
                                      {"fc_out.bias: expected float64 (8,), got float32 (8,)"}));
  load_state_dict(*wide, path("narrow.safetensors"), LoadStateDictOptions().convert_dtype(true));
  EXPECT_TRUE(bit_equal(wide->fc_out->bias, saved->fc_out->bias.to(torch::kFloat64)));
}

TEST_F(Checkpoint, AStackedTensorIsSplitIntoEqualParts) {
  torch::nn::Module stacked("stacked");
  const auto in_weight = torch::arange(192, torch::kFloat).view({24, 8});
  const auto in_bias = torch::arange(24, torch::kFloat);
  stacked.register_buffer("in_proj_weight", in_weight);
  stacked.register_buffer("in_proj_bias", in_bias);
  const auto out = stacked.register_module("out_proj", torch::nn::Linear(8, 8));
  save_state_dict(stacked, path("stacked.pt"));
  FullProjectionAttention module(8, 2);
  load_state_dict(*module, path("stacked.pt"), multihead_attention_options());
  EXPECT_TRUE(bit_equal(module->q_linear->weight, in_weight.slice(0, 0, 8)));
  EXPECT_TRUE(bit_equal(module->k_linear->weight, in_weight.slice(0, 8, 16)));
  EXPECT_TRUE(bit_equal(module->v_linear->bias, in_bias.slice(0, 16, 24)));
  EXPECT_TRUE(bit_equal(module->output_linear->weight, out->weight));

  const auto before = contents(*module);
  auto options = multihead_attention_options();
  options.split()["in_proj_bias"].resize(1);
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { load_state_dict(*module, path("stacked.pt"), options); },
      {"q_linear.bias: expected float32 (8,), got float32 (24,)", "missing: ", "v_linear.bias"}));
  options.split()["in_proj_bias"].assign(5, "q_linear.bias");
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { load_state_dict(*module, path("stacked.pt"), options); },
      {"in_proj_bias: expected 5 equal parts along its first dimension, got float32 (24,)"}));
  options.split()["in_proj_bias"].clear();
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { load_state_dict(*module, path("stacked.pt"), options); },
                              {"options.split: expected names for in_proj_bias, got none"}));
  EXPECT_TRUE(same_contents(contents(*module), before));
}

TEST_F(Checkpoint, UndefinedBuffersAreLeftOut) {
  const auto options = torch::nn::BatchNormOptions(4).track_running_stats(false);
  torch::nn::BatchNorm1d saved(options);
  saved->weight.detach().fill_(0.5);
  for (const char* name : {"norm.pt", "norm.safetensors"}) {
    save_state_dict(*saved, path(name));
    torch::nn::BatchNorm1d loaded(options);
    EXPECT_TRUE(load_state_dict(*loaded, path(name)).matches());
    EXPECT_TRUE(bit_equal(loaded->weight, saved->weight));
  }
}

TEST_F(Checkpoint, TensorsThatCannotBeWrittenToAreRefusedBeforeAnyIsWritten) {
  torch::nn::Module saved("saved");
  saved.register_buffer("a", torch::ones({3}));
  saved.register_buffer("b", torch::ones({3}));
  save_state_dict(saved, path("a.pt"));
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  const std::vector<std::pair<torch::Tensor, std::string>> refused = {
      {torch::zeros({1}).expand(3), "got b, one whose elements share memory"},
      {torch::zeros({3}, meta), "got b, one on the meta device"},
      {torch::zeros({3}).to_sparse(), "got b, one that is not dense"},
  };
  for (const auto& [tensor, words] : refused) {
    torch::nn::Module module("module");
    const auto first = module.register_buffer("a", torch::zeros({3}));
    module.register_buffer("b", tensor);
    EXPECT_TRUE(
        throws<c10::ValueError>([&] { load_state_dict(module, path("a.pt")); },
                                {"[load_state_dict] module: expected tensors that can", words}));
    EXPECT_TRUE(bit_equal(first, torch::zeros({3})));
  }
}

/// One step of training on fixed numbers.
void train(SharedProjectionAttention& module, torch::optim::Optimizer& optimizer) {
  const auto x = torch::linspace(-1, 1, 2 * 3 * 8).view({2, 3, 8});
  optimizer.zero_grad();
  module->forward(x, x, x).square().sum().backward();
  optimizer.step();
}

TEST_F(Checkpoint, AnOptimizerGoesOnFromACppArchive_R33) {
  SharedProjectionAttention first(8, 2);
  torch::optim::Adam adam(first->parameters(), torch::optim::AdamOptions(0.01));
  for (int i = 0; i < 2; ++i) train(first, adam);
  torch::save(first, path("module.pt"));
  torch::save(adam, path("adam.pt"));
  SharedProjectionAttention second(8, 2);
  load_state_dict(*second, path("module.pt"));
  torch::optim::Adam other(second->parameters(), torch::optim::AdamOptions(0.5));
  torch::load(other, path("adam.pt"));
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.01);
  train(first, adam);
  train(second, other);
  EXPECT_TRUE(same_contents(contents(*second), contents(*first)));
}

TEST_F(Checkpoint, FilesThatCannotBeUsedAreRefused) {
  SharedProjectionAttention module(8, 2);
  const auto before = contents(*module);
  EXPECT_TRUE(throws<c10::ValueError>([&] { load_state_dict(*module, path("absent.pt")); },
                                      {"[load_state_dict] file: ", "absent.pt"}));
  save_state_dict(*module, path("cut.pt"));
  std::filesystem::resize_file(path("cut.pt"), std::filesystem::file_size(path("cut.pt")) / 2);
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { load_state_dict(*module, path("cut.pt")); }, {"cut.pt"}));
  save_state_dict(*module, path("key.pt"));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { load_state_dict(*module, path("key.pt"), LoadStateDictOptions().key("ema")); },
      {"ema"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { save_state_dict(*module, path("model.onnx")); },
      {"[save_state_dict] file: expected a name that ends in", "model.onnx"}));
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { save_state_dict(*module, path("nowhere") + "/model.pt"); },
                              {"[save_state_dict] file: "}));
  EXPECT_TRUE(same_contents(contents(*module), before));
}

TEST_F(Checkpoint, InferenceTensorsAreWrittenToOnlyInInferenceMode) {
  SharedProjectionAttention saved(8, 2);
  save_state_dict(*saved, path("a.pt"));
  SharedProjectionAttention module{nullptr};
  {
    const c10::InferenceMode inference;
    module = SharedProjectionAttention(8, 2);
  }
  EXPECT_TRUE(throws<c10::ValueError>([&] { load_state_dict(*module, path("a.pt")); },
                                      {"values.weight, an inference tensor"}));
  const c10::InferenceMode inference;
  load_state_dict(*module, path("a.pt"));
  EXPECT_TRUE(bit_equal(module->fc_out->weight, saved->fc_out->weight));
}

}  // namespace
}  // namespace self_attention
