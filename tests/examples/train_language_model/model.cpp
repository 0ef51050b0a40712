#include "model.h"

#include <torch/nn/functional/activation.h>
#include <torch/nn/init.h>

namespace language_model {
namespace {

namespace F = torch::nn::functional;
using self_attention::Backend;

constexpr std::int64_t kExpansion = 4;

Backend backend_from(const std::string& name) {
  if (name == "eager") return Backend::Eager;
  return name == "fused" ? Backend::Fused : Backend::Auto;
}

torch::nn::LayerNorm layer_norm(std::int64_t size) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({size}));
}

}  // namespace

BlockImpl::BlockImpl(const Options& options)
    : attention_norm_(register_module("attention_norm", layer_norm(options.embed))),
      attention_(register_module("attention", self_attention::SharedProjectionAttention(
                                                  self_attention::SharedProjectionAttentionOptions(
                                                      options.embed, options.heads)
                                                      .backend(backend_from(options.backend))
                                                      .is_causal(true)))),
      feed_forward_norm_(register_module("feed_forward_norm", layer_norm(options.embed))),
      expand_(
          register_module("expand", torch::nn::Linear(options.embed, kExpansion * options.embed))),
      contract_(register_module("contract",
                                torch::nn::Linear(kExpansion * options.embed, options.embed))),
      dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))) {}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  const torch::Tensor normal = attention_norm_(x);
  x = x + dropout_(attention_(normal, normal, normal));
  // Not Linear's own forward, which adds the bias in a pass of its own.
  const torch::Tensor hidden =
      F::gelu(torch::linear(feed_forward_norm_(x), expand_->weight, expand_->bias));
  return x + dropout_(torch::linear(hidden, contract_->weight, contract_->bias));
}

LanguageModelImpl::LanguageModelImpl(const Options& options, std::int64_t vocabulary)
    : token_(register_module("token", torch::nn::Embedding(vocabulary, options.embed))),
      position_(register_module("position", torch::nn::Embedding(options.context, options.embed))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(nullptr),
      head_(nullptr),
      dropout_(nullptr) {
  for (std::int64_t i = 0; i < options.layers; ++i) blocks_->push_back(Block(options));
  norm_ = register_module("norm", layer_norm(options.embed));
  head_ = register_module("head", torch::nn::Linear(options.embed, vocabulary));
  dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
  constexpr double kDeviation = 0.02;
  torch::nn::init::normal_(token_->weight, 0.0, kDeviation);
  torch::nn::init::normal_(position_->weight, 0.0, kDeviation);
}

torch::Tensor LanguageModelImpl::forward(const torch::Tensor& tokens) {
  torch::Tensor x = dropout_(token_(tokens) + position_->weight.narrow(0, 0, tokens.size(1)));
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  return torch::linear(norm_(x), head_->weight, head_->bias);
}

}  // namespace language_model
