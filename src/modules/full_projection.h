#pragma once

#include <torch/types.h>

#include <cmath>
#include <cstdint>

#include "ops/attention_op.h"
#include "ops/input_checks.h"

namespace self_attention {

/// The inputs of FullProjectionAttention, as its forward takes them.
struct FullInputs {
  const torch::Tensor& values;
  const torch::Tensor& keys;
  const torch::Tensor& query;
  const torch::Tensor& mask;

  /// keys and query left out: values stand for all three.
  bool self() const { return !keys.defined() && !query.defined(); }
  const torch::Tensor& keys_or_values() const { return self() ? values : keys; }
  const torch::Tensor& query_or_values() const { return self() ? values : query; }
};

/// Its parameters and options.
struct FullParameters {
  const torch::Tensor& q_weight;
  const torch::Tensor& q_bias;
  const torch::Tensor& k_weight;
  const torch::Tensor& k_bias;
  const torch::Tensor& v_weight;
  const torch::Tensor& v_bias;
  const torch::Tensor& output_weight;
  const torch::Tensor& output_bias;
  int64_t num_heads;
  Backend backend;
  bool is_causal;
  double dropout_p;

  int64_t embed_dim() const { return output_bias.size(0); }
  int64_t head_dim() const { return embed_dim() / num_heads; }
  /// What scores are divided by.
  double divisor() const { return std::pow(static_cast<double>(head_dim()), 0.5); }
};

/// A checked call of FullProjectionAttention.
struct FullCall {
  const FullInputs& inputs;
  const FullParameters& parameters;
  const ScoreShape& scores;
};

/// The forward pass without what the softmax cancels, and with projections where they are cheapest,
/// around the fused kernel. Computes 16 bits in float32 and rounds once.
torch::Tensor folded_full_projection(const FullCall& call);

}  // namespace self_attention
