#pragma once

#include <self_attention/modules/shared_projection_attention.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>

#include "options.h"

namespace language_model {

/// Attention, then a feed-forward layer four times as wide; each reads its normalized input and
/// adds to it.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const Options& options);

  /// (N, L, E) -> (N, L, E).
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::LayerNorm attention_norm_;
  self_attention::SharedProjectionAttention attention_;
  torch::nn::LayerNorm feed_forward_norm_;
  torch::nn::Linear expand_;
  torch::nn::Linear contract_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(Block);

/// Predicts each character from those before it.
class LanguageModelImpl : public torch::nn::Module {
 public:
  LanguageModelImpl(const Options& options, std::int64_t vocabulary);

  /// Numbers of characters (N, L), int64, L at most the context -> scores of the next (N, L, V).
  torch::Tensor forward(const torch::Tensor& tokens);

 private:
  torch::nn::Embedding token_;
  torch::nn::Embedding position_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(LanguageModel);

}  // namespace language_model
