#pragma once

#include <gtest/gtest.h>
#include <self_attention/self_attention.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/import.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"

namespace self_attention::testing {

/// A folder of the test's own, and exporting into it.
class ExportTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  /// Exports and loads again.
  template <typename Holder>
  torch::jit::Module exported(const Holder& module, const ExportOptions& options = {}) const {
    export_torchscript(*module, path("model.pt"), options);
    return torch::jit::load(path("model.pt"));
  }

 private:
  io_test::TemporaryFolder folder_;
};

/// The module with the operations that a portable archive has.
template <typename Holder>
Holder eager(Holder module) {
  module->options.backend(Backend::Eager);
  return module;
}

/// The schemas of all operators that forward runs.
inline std::set<std::string> operators(const torch::jit::Module& module) {
  std::set<std::string> schemas;
  const auto graph = module.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  const std::function<void(const torch::jit::Block&)> visit = [&](const torch::jit::Block& block) {
    for (const torch::jit::Node* node : block.nodes()) {
      if (const auto* schema = node->maybeSchema()) schemas.insert(c10::toString(*schema));
      for (const torch::jit::Block* inner : node->blocks()) visit(*inner);
    }
  };
  visit(*graph->block());
  return schemas;
}

/// forward of tensors; an undefined one is left out.
inline torch::Tensor run(torch::jit::Module& module, const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::jit::IValue> inputs;
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.defined()) inputs.emplace_back(tensor);
  }
  return module.forward(std::move(inputs)).toTensor();
}

/// Runs `call` and expects an error that holds every one of `words`.
template <typename Call>
::testing::AssertionResult raises(Call call, const std::vector<std::string>& words) {
  try {
    call();
  } catch (const std::exception& error) {
    for (const std::string& word : words) {
      if (std::string(error.what()).find(word) == std::string::npos) {
        return ::testing::AssertionFailure() << "\"" << word << "\" is not in: " << error.what();
      }
    }
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace self_attention::testing
