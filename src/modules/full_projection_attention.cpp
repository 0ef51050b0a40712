#include <self_attention/modules/full_projection_attention.h>

#include "backends/cpu/cpu_attention.h"
#include "backends/reference/dropout.h"
#include "backends/reference/masked_softmax.h"
#include "modules/full_projection.h"
#include "modules/option_checks.h"
#include "ops/attention_arguments.h"
#include "ops/input_checks.h"

namespace self_attention {
namespace {

/// (N, L, E) -> (N, 1, L, E), by the Python class's two operations at one head.
torch::Tensor with_head_axis(const torch::Tensor& x) {
  return x.view({x.size(0), x.size(1), 1, x.size(2)}).permute({0, 2, 1, 3});
}

/// (N, 1, L, E) -> (N, H, L, d). One head is left untouched, since a further view could change
/// which kernel a matrix product takes, and with it the last bit.
torch::Tensor split_heads(const torch::Tensor& projected, int64_t num_heads) {
  if (num_heads == 1) {
    return projected;
  }
  const int64_t length = projected.size(2);
  const int64_t head_dim = projected.size(3) / num_heads;
  return projected.reshape({projected.size(0), length, num_heads, head_dim}).permute({0, 2, 1, 3});
}

/// Throws unless parameters and inputs fit each other. Returns the sizes of the scores.
ScoreShape check_arguments(std::string_view who, const FullInputs& inputs,
                           const FullParameters& parameters) {
  const int64_t embed = check_bias(who, {"output_bias", parameters.output_bias});
  check_divisible_sizes(who, {"embed_dim", embed}, {"num_heads", parameters.num_heads});
  check_dropout(who, "dropout_p", parameters.dropout_p);
  const std::initializer_list<ExpectedParameter> expected = {
      {"q_weight", parameters.q_weight, {embed, embed}},
      {"q_bias", parameters.q_bias, {embed}},
      {"k_weight", parameters.k_weight, {embed, embed}},
      {"k_bias", parameters.k_bias, {embed}},
      {"v_weight", parameters.v_weight, {embed, embed}},
      {"v_bias", parameters.v_bias, {embed}},
      {"output_weight", parameters.output_weight, {embed, embed}},
      {"output_bias", parameters.output_bias, {embed}}};
  check_parameters(who, expected);

  TORCH_CHECK_VALUE(inputs.keys.defined() == inputs.query.defined(),
                    message(who, inputs.keys.defined() ? "query" : "keys",
                            "keys and query both, or neither for self-attention", "one of them"));
  const std::string_view query_name = inputs.self() ? "values" : "query";
  const torch::Tensor& keys = inputs.keys_or_values();
  const torch::Tensor& query = inputs.query_or_values();
  const NamedTensors named = {{"values", inputs.values}, {"keys", keys}, {query_name, query}};
  check_inputs(who, named, {"the parameters", parameters.output_bias});
  check_recordable(who, expected, named);
  check_sequence_shapes(who, named, embed);
  const ScoreShape scores = {query.size(0), parameters.num_heads, query.size(1), keys.size(1)};
  check_mask(who, inputs.mask, scores, parameters.output_bias.device());
  return scores;
}

FullParameters parameters_of(const FullProjectionAttentionImpl& module) {
  return {module.q_linear->weight,      module.q_linear->bias,
          module.k_linear->weight,      module.k_linear->bias,
          module.v_linear->weight,      module.v_linear->bias,
          module.output_linear->weight, module.output_linear->bias,
          module.options.num_heads(),   module.options.backend(),
          module.options.is_causal(),   module.is_training() ? module.options.dropout() : 0};
}

/// Where `weights` is given it receives those of the softmax, (N, H, Q, K), and the backend is
/// Eager, the one that has them.
torch::Tensor attend(std::string_view who, const FullInputs& inputs,
                     const FullParameters& parameters, torch::Tensor* weights = nullptr) {
  const ScoreShape scores = check_arguments(who, inputs, parameters);
  const FullParameters& p = parameters;
  if (weights == nullptr &&
      runs_fused(who, p.backend,
                 cpu::ineligible_because(inputs.values, scores.key_length, 1 / p.divisor()))) {
    return folded_full_projection({inputs, p, scores});
  }

  const int64_t heads = scores.heads;
  // Self-attention shares one view, as the Python class does: gradients then meet in one place and
  // are summed in its order.
  const torch::Tensor values = with_head_axis(inputs.values);
  const torch::Tensor keys = inputs.self() ? values : with_head_axis(inputs.keys);
  const torch::Tensor query = inputs.self() ? values : with_head_axis(inputs.query);
  const torch::Tensor q = split_heads(torch::linear(query, p.q_weight, p.q_bias), heads);
  const torch::Tensor k = split_heads(torch::linear(keys, p.k_weight, p.k_bias), heads);
  const torch::Tensor v = split_heads(torch::linear(values, p.v_weight, p.v_bias), heads);

  const torch::Tensor mask = combined_mask({q, k, v, inputs.mask, 1 / p.divisor(), p.is_causal});
  torch::Tensor attention =
      reference::masked_softmax(torch::matmul(q, k.transpose(-2, -1)), mask, p.divisor());
  if (weights != nullptr) *weights = attention;
  if (p.dropout_p > 0) attention = reference::drop(attention, p.dropout_p, reference::draw_seed());
  const torch::Tensor attended = torch::matmul(attention, v);
  const torch::Tensor merged = attended.permute({0, 2, 1, 3})
                                   .contiguous()
                                   .view({scores.batch, scores.query_length, p.embed_dim()});
  return torch::linear(merged, p.output_weight, p.output_bias);
}

}  // namespace

namespace functional {

torch::Tensor full_projection_attention(const torch::Tensor& values, const torch::Tensor& keys,
                                        const torch::Tensor& query, const torch::Tensor& mask,
                                        const torch::Tensor& q_weight, const torch::Tensor& q_bias,
                                        const torch::Tensor& k_weight, const torch::Tensor& k_bias,
                                        const torch::Tensor& v_weight, const torch::Tensor& v_bias,
                                        const torch::Tensor& output_weight,
                                        const torch::Tensor& output_bias, int64_t num_heads,
                                        Backend backend, bool is_causal, double dropout_p) {
  return attend("full_projection_attention", {values, keys, query, mask},
                {q_weight, q_bias, k_weight, k_bias, v_weight, v_bias, output_weight, output_bias,
                 num_heads, backend, is_causal, dropout_p});
}

}  // namespace functional

FullProjectionAttentionImpl::FullProjectionAttentionImpl(
    const FullProjectionAttentionOptions& options_)
    : options(options_) {
  // A virtual call from a constructor reaches this class's own, which is the one that is meant.
  FullProjectionAttentionImpl::reset();
}

void FullProjectionAttentionImpl::reset() {
  const int64_t embed = options.embed_dim();
  check_divisible_sizes("FullProjectionAttention", {"embed_dim", embed},
                        {"num_heads", options.num_heads()});
  check_dropout("FullProjectionAttention", "dropout", options.dropout());
  // Registered in the order of the Python class, so that one seed gives both the same weights.
  q_linear = register_module("q_linear", torch::nn::Linear(embed, embed));
  k_linear = register_module("k_linear", torch::nn::Linear(embed, embed));
  v_linear = register_module("v_linear", torch::nn::Linear(embed, embed));
  output_linear = register_module("output_linear", torch::nn::Linear(embed, embed));
}

void FullProjectionAttentionImpl::reset_parameters() {
  for (auto* child : {&q_linear, &k_linear, &v_linear, &output_linear}) {
    (*child)->reset_parameters();
  }
}

void FullProjectionAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "self_attention::FullProjectionAttention(embed_dim=" << options.embed_dim()
         << ", num_heads=" << options.num_heads();
  print_options(stream, options.is_causal(), options.dropout());
}

torch::Tensor FullProjectionAttentionImpl::forward(const torch::Tensor& values,
                                                   const torch::Tensor& keys,
                                                   const torch::Tensor& query,
                                                   const torch::Tensor& mask) {
  return attend("FullProjectionAttention", {values, keys, query, mask}, parameters_of(*this));
}

std::tuple<torch::Tensor, torch::Tensor> FullProjectionAttentionImpl::forward_with_weights(
    const torch::Tensor& values, const torch::Tensor& keys, const torch::Tensor& query,
    const torch::Tensor& mask, bool average_weights) {
  torch::Tensor weights;
  torch::Tensor output = attend("FullProjectionAttention", {values, keys, query, mask},
                                parameters_of(*this), &weights);
  return {std::move(output), average_weights ? weights.mean(1) : weights};
}

}  // namespace self_attention
