#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "model.h"

namespace serve {

/// One of the library's modules.
struct LibraryModule {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

/// The module that a model was made of, with new weights.
LibraryModule make_module(const ModelInfo& info);

/// Throws the library's own error where it would not take arguments of these shapes and dtypes.
void check_shapes(const ModelInfo& info, const Arguments& arguments);

/// The parameters of such a module in a file that load_state_dict takes.
Weights read_weights(const ModelInfo& info, const std::string& path);

}  // namespace serve
