#include <self_attention/modules/inferred_length_attention.h>

#include "modules/option_checks.h"
#include "modules/shared_heads.h"

namespace self_attention {
namespace {

/// The length of `input` once it is read as (batch, length, heads, head_dim).
int64_t inferred_length(std::string_view who, const NamedTensor& input, int64_t batch,
                        const SharedHeadParameters& parameters) {
  const int64_t heads = parameters.heads;
  const int64_t head_dim = parameters.head_dim();
  // Not numel(), which compilation for sizes that are not known yet has no answer to.
  int64_t elements = 1;
  for (int64_t axis = 0; axis < input.tensor.dim(); ++axis) elements *= input.tensor.size(axis);
  // Divided one after the other: an empty tensor's batch can be so large that the product
  // overflows.
  const int64_t rows = elements / (heads * head_dim);
  TORCH_CHECK_VALUE(
      elements % (heads * head_dim) == 0 && rows % batch == 0,
      message(who, input.name,
              c10::str("a multiple of N*H*d = ", batch, "*", heads, "*", head_dim, " elements"),
              c10::str(elements, " in ", shape_text(input.tensor.sizes()))));
  return rows / batch;
}

/// Whether reading `input` with that length leaves its batch and length as the caller wrote them.
bool keeps_axes(const torch::Tensor& input, int64_t batch, int64_t length) {
  return input.dim() == 3 && input.size(0) == batch && input.size(1) == length;
}

torch::Tensor attend(std::string_view who, const SharedHeadInputs& inputs,
                     const SharedHeadParameters& parameters, torch::Tensor* weights = nullptr) {
  check_shared_heads(who, inputs, "queries", parameters);
  TORCH_CHECK_VALUE(inputs.query.dim() >= 1 && inputs.query.size(0) >= 1,
                    message(who, "queries", "a batch of at least one, (N >= 1, Q, E)",
                            shape_text(inputs.query.sizes())));
  const int64_t batch = inputs.query.size(0);
  const int64_t value_length = inferred_length(who, {"values", inputs.values}, batch, parameters);
  const int64_t key_length = inferred_length(who, {"keys", inputs.keys}, batch, parameters);
  const int64_t query_length = inferred_length(who, {"queries", inputs.query}, batch, parameters);
  check_key_lengths(who, inputs.values, value_length, key_length);
  const ScoreShape scores = {batch, parameters.heads, query_length, key_length};
  check_mask(who, inputs.mask, scores, parameters.fc_out_bias.device());
  if (!keeps_axes(inputs.values, batch, value_length) ||
      !keeps_axes(inputs.keys, batch, key_length) ||
      !keeps_axes(inputs.query, batch, query_length)) {
    TORCH_WARN_ONCE(
        "[", who, "] the lengths inferred for values ", shape_text(inputs.values.sizes()),
        ", keys ", shape_text(inputs.keys.sizes()), " and queries ",
        shape_text(inputs.query.sizes()), " are K=", key_length, " and Q=", query_length,
        " in a batch of ", batch,
        ": the reshape moves elements between axes, as in Python. Batches that agree and "
        "heads that divide embed_size avoid it.");
  }
  return shared_heads_attention(who, inputs, parameters, scores, weights);
}

}  // namespace

namespace functional {

torch::Tensor inferred_length_attention(const torch::Tensor& values, const torch::Tensor& keys,
                                        const torch::Tensor& queries, const torch::Tensor& mask,
                                        const torch::Tensor& values_weight,
                                        const torch::Tensor& keys_weight,
                                        const torch::Tensor& queries_weight,
                                        const torch::Tensor& fc_out_weight,
                                        const torch::Tensor& fc_out_bias, int64_t heads,
                                        Backend backend, bool is_causal, double dropout_p) {
  return attend("inferred_length_attention", {values, keys, queries, mask},
                {values_weight, keys_weight, queries_weight, fc_out_weight, fc_out_bias, heads,
                 backend, is_causal, dropout_p});
}

}  // namespace functional

InferredLengthAttentionImpl::InferredLengthAttentionImpl(
    const InferredLengthAttentionOptions& options_)
    : options(options_) {
  // A virtual call from a constructor reaches this class's own, which is the one that is meant.
  InferredLengthAttentionImpl::reset();
}

void InferredLengthAttentionImpl::reset() {
  const int64_t embed = options.embed_size();
  const int64_t heads = options.heads();
  check_sizes("InferredLengthAttention", {"embed_size", embed}, {"heads", heads});
  check_dropout("InferredLengthAttention", "dropout", options.dropout());
  const auto layers = register_shared_heads(*this, embed, heads);
  values = layers.values;
  keys = layers.keys;
  queries = layers.queries;
  fc_out = layers.fc_out;
}

void InferredLengthAttentionImpl::reset_parameters() {
  for (auto* child : {&values, &keys, &queries, &fc_out}) {
    (*child)->reset_parameters();
  }
}

void InferredLengthAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "self_attention::InferredLengthAttention(embed_size=" << options.embed_size()
         << ", heads=" << options.heads();
  print_options(stream, options.is_causal(), options.dropout());
}

torch::Tensor InferredLengthAttentionImpl::forward(const torch::Tensor& values_,
                                                   const torch::Tensor& keys_,
                                                   const torch::Tensor& queries_,
                                                   const torch::Tensor& mask) {
  return attend("InferredLengthAttention", {values_, keys_, queries_, mask},
                shared_head_parameters(*this));
}

std::tuple<torch::Tensor, torch::Tensor> InferredLengthAttentionImpl::forward_with_weights(
    const torch::Tensor& values_, const torch::Tensor& keys_, const torch::Tensor& queries_,
    const torch::Tensor& mask, bool average_weights) {
  torch::Tensor weights;
  torch::Tensor output = attend("InferredLengthAttention", {values_, keys_, queries_, mask},
                                shared_head_parameters(*this), &weights);
  return {std::move(output), average_weights ? weights.mean(1) : weights};
}

}  // namespace self_attention
