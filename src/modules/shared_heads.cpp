#include "modules/shared_heads.h"

#include "backends/cpu/cpu_attention.h"
#include "backends/reference/dropout.h"
#include "backends/reference/masked_softmax.h"
#include "modules/option_checks.h"
#include "ops/attention_arguments.h"

namespace self_attention {

SharedHeadLayers register_shared_heads(torch::nn::Module& module, int64_t embed_size,
                                       int64_t heads) {
  const int64_t head_dim = embed_size / heads;
  const auto projection = torch::nn::LinearOptions(head_dim, head_dim).bias(false);
  // Each made and registered before the next: the order of the draws is the order of the lines.
  torch::nn::Linear values = module.register_module("values", torch::nn::Linear(projection));
  torch::nn::Linear keys = module.register_module("keys", torch::nn::Linear(projection));
  torch::nn::Linear queries = module.register_module("queries", torch::nn::Linear(projection));
  torch::nn::Linear fc_out =
      module.register_module("fc_out", torch::nn::Linear(heads * head_dim, embed_size));
  return {values, keys, queries, fc_out};
}

void check_shared_heads(std::string_view who, const SharedHeadInputs& inputs,
                        std::string_view query_name, const SharedHeadParameters& parameters) {
  const int64_t embed = check_bias(who, {"fc_out_bias", parameters.fc_out_bias});
  check_sizes(who, {"embed_size", embed}, {"heads", parameters.heads});
  check_dropout(who, "dropout_p", parameters.dropout_p);
  const int64_t head_dim = parameters.head_dim();
  const std::initializer_list<ExpectedParameter> expected = {
      {"values_weight", parameters.values_weight, {head_dim, head_dim}},
      {"keys_weight", parameters.keys_weight, {head_dim, head_dim}},
      {"queries_weight", parameters.queries_weight, {head_dim, head_dim}},
      {"fc_out_weight", parameters.fc_out_weight, {embed, parameters.heads * head_dim}},
      {"fc_out_bias", parameters.fc_out_bias, {embed}}};
  const NamedTensors named = {
      {"values", inputs.values}, {"keys", inputs.keys}, {query_name, inputs.query}};
  check_parameters(who, expected);
  check_inputs(who, named, {"the parameters", parameters.fc_out_bias});
  check_recordable(who, expected, named);
}

torch::Tensor shared_heads_attention(std::string_view who, const SharedHeadInputs& inputs,
                                     const SharedHeadParameters& parameters,
                                     const ScoreShape& scores, torch::Tensor* weights) {
  const auto& [batch, heads, query_length, key_length] = scores;
  if (weights == nullptr &&
      runs_fused(who, parameters.backend,
                 cpu::ineligible_because(inputs.query, key_length, 1 / parameters.divisor()))) {
    return folded_shared_heads(inputs, parameters, scores);
  }

  const int64_t head_dim = parameters.head_dim();
  const torch::Tensor split_values = inputs.values.reshape({batch, key_length, heads, head_dim});
  const torch::Tensor split_keys = inputs.keys.reshape({batch, key_length, heads, head_dim});
  const torch::Tensor split_query = inputs.query.reshape({batch, query_length, heads, head_dim});

  // torch::linear and not the children's forward, and std::pow and not std::sqrt: those round
  // differently from Python. The order of the calls decides the order in which gradients are
  // summed.
  const torch::Tensor values = torch::linear(split_values, parameters.values_weight);
  const torch::Tensor keys = torch::linear(split_keys, parameters.keys_weight);
  const torch::Tensor queries = torch::linear(split_query, parameters.queries_weight);

  const torch::Tensor energy = torch::einsum("nqhd,nkhd->nhqk", {queries, keys});
  const torch::Tensor mask =
      combined_mask({queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2),
                     inputs.mask, 1 / parameters.divisor(), parameters.is_causal});
  torch::Tensor attention = reference::masked_softmax(energy, mask, parameters.divisor());
  if (weights != nullptr) *weights = attention;
  if (parameters.dropout_p > 0) {
    attention = reference::drop(attention, parameters.dropout_p, reference::draw_seed());
  }
  const torch::Tensor attended = torch::einsum("nhql,nlhd->nqhd", {attention, values});
  const torch::Tensor merged = attended.reshape({batch, query_length, heads * head_dim});
  return torch::linear(merged, parameters.fc_out_weight, parameters.fc_out_bias);
}

}  // namespace self_attention
