#pragma once

#include <self_attention/ops/attention.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <string_view>

#include "ops/attention_op.h"
#include "ops/input_checks.h"

namespace self_attention {

/// Parameters of the two modules whose heads share one (d, d) projection each for values, keys and
/// queries.
struct SharedHeadParameters {
  const torch::Tensor& values_weight;
  const torch::Tensor& keys_weight;
  const torch::Tensor& queries_weight;
  const torch::Tensor& fc_out_weight;
  const torch::Tensor& fc_out_bias;
  int64_t heads;
  Backend backend;
  bool is_causal;
  double dropout_p;

  int64_t embed_size() const { return fc_out_bias.size(0); }
  int64_t head_dim() const { return embed_size() / heads; }
  /// What scores are divided by.
  double divisor() const { return std::pow(static_cast<double>(embed_size()), 0.5); }
};

/// The children of those modules.
struct SharedHeadLayers {
  torch::nn::Linear values;
  torch::nn::Linear keys;
  torch::nn::Linear queries;
  torch::nn::Linear fc_out;
};

/// Makes the children and registers them with `module` in the order of the Python classes, so that
/// one seed gives both the same weights.
SharedHeadLayers register_shared_heads(torch::nn::Module& module, int64_t embed_size,
                                       int64_t heads);

/// Those and the options of one of the modules.
template <typename Module>
SharedHeadParameters shared_head_parameters(const Module& module) {
  return {module.values->weight,
          module.keys->weight,
          module.queries->weight,
          module.fc_out->weight,
          module.fc_out->bias,
          module.options.heads(),
          module.options.backend(),
          module.options.is_causal(),
          module.is_training() ? module.options.dropout() : 0};
}

struct SharedHeadInputs {
  const torch::Tensor& values;
  const torch::Tensor& keys;
  const torch::Tensor& query;
  const torch::Tensor& mask;
};

/// Throws unless the parameters have the shapes that heads and fc_out_bias ask for, and the inputs
/// their device and dtype. How the lengths are read is the caller's to check. `query_name` is the
/// argument's name in messages.
void check_shared_heads(std::string_view who, const SharedHeadInputs& inputs,
                        std::string_view query_name, const SharedHeadParameters& parameters);

/// shared_heads_attention() with the projections where plan_shared_heads() puts them and
/// the fused kernel in between. Computes 16 bits in float32 and rounds once.
torch::Tensor folded_shared_heads(const SharedHeadInputs& inputs,
                                  const SharedHeadParameters& parameters, const ScoreShape& scores);

/// The forward pass of SharedProjectionAttention and InferredLengthAttention. With Backend::Eager
/// operation by operation that of the Python classes, so that results and gradients are bit-equal.
///
/// Inputs are reshaped to the sizes in `scores`: values and keys to (N, K, H, d), query to
/// (N, Q, H, d). Returns (N, Q, E). Where `weights` is given it receives those of the softmax,
/// (N, H, Q, K), and the backend is Eager, the one that has them.
torch::Tensor shared_heads_attention(std::string_view who, const SharedHeadInputs& inputs,
                                     const SharedHeadParameters& parameters,
                                     const ScoreShape& scores, torch::Tensor* weights = nullptr);

}  // namespace self_attention
