#include <self_attention/modules/shared_projection_attention.h>

#include "modules/option_checks.h"
#include "modules/shared_heads.h"

namespace self_attention {
namespace {

torch::Tensor attend(std::string_view who, const SharedHeadInputs& inputs,
                     const SharedHeadParameters& parameters, torch::Tensor* weights = nullptr) {
  check_shared_heads(who, inputs, "query", parameters);
  const int64_t embed = parameters.embed_size();
  check_divisible_sizes(who, {"embed_size", embed}, {"heads", parameters.heads});
  check_sequence_shapes(
      who, {{"values", inputs.values}, {"keys", inputs.keys}, {"query", inputs.query}}, embed);
  const ScoreShape scores = {inputs.query.size(0), parameters.heads, inputs.query.size(1),
                             inputs.keys.size(1)};
  check_mask(who, inputs.mask, scores, parameters.fc_out_bias.device());
  return shared_heads_attention(who, inputs, parameters, scores, weights);
}

}  // namespace

namespace functional {

torch::Tensor shared_projection_attention(const torch::Tensor& values, const torch::Tensor& keys,
                                          const torch::Tensor& query, const torch::Tensor& mask,
                                          const torch::Tensor& values_weight,
                                          const torch::Tensor& keys_weight,
                                          const torch::Tensor& queries_weight,
                                          const torch::Tensor& fc_out_weight,
                                          const torch::Tensor& fc_out_bias, int64_t heads,
                                          Backend backend, bool is_causal, double dropout_p) {
  return attend("shared_projection_attention", {values, keys, query, mask},
                {values_weight, keys_weight, queries_weight, fc_out_weight, fc_out_bias, heads,
                 backend, is_causal, dropout_p});
}

}  // namespace functional

SharedProjectionAttentionImpl::SharedProjectionAttentionImpl(
    const SharedProjectionAttentionOptions& options_)
    : options(options_) {
  // A virtual call from a constructor reaches this class's own, which is the one that is meant.
  SharedProjectionAttentionImpl::reset();
}

void SharedProjectionAttentionImpl::reset() {
  const int64_t embed = options.embed_size();
  const int64_t heads = options.heads();
  check_divisible_sizes("SharedProjectionAttention", {"embed_size", embed}, {"heads", heads});
  check_dropout("SharedProjectionAttention", "dropout", options.dropout());
  const auto layers = register_shared_heads(*this, embed, heads);
  values = layers.values;
  keys = layers.keys;
  queries = layers.queries;
  fc_out = layers.fc_out;
}

void SharedProjectionAttentionImpl::reset_parameters() {
  for (auto* child : {&values, &keys, &queries, &fc_out}) {
    (*child)->reset_parameters();
  }
}

void SharedProjectionAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "self_attention::SharedProjectionAttention(embed_size=" << options.embed_size()
         << ", heads=" << options.heads();
  print_options(stream, options.is_causal(), options.dropout());
}

torch::Tensor SharedProjectionAttentionImpl::forward(const torch::Tensor& values_,
                                                     const torch::Tensor& keys_,
                                                     const torch::Tensor& query,
                                                     const torch::Tensor& mask) {
  return attend("SharedProjectionAttention", {values_, keys_, query, mask},
                shared_head_parameters(*this));
}

std::tuple<torch::Tensor, torch::Tensor> SharedProjectionAttentionImpl::forward_with_weights(
    const torch::Tensor& values_, const torch::Tensor& keys_, const torch::Tensor& query,
    const torch::Tensor& mask, bool average_weights) {
  torch::Tensor weights;
  torch::Tensor output = attend("SharedProjectionAttention", {values_, keys_, query, mask},
                                shared_head_parameters(*this), &weights);
  return {std::move(output), average_weights ? weights.mean(1) : weights};
}

}  // namespace self_attention
