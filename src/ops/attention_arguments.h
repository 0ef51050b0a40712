#pragma once

#include <torch/types.h>

#include <optional>
#include <string_view>
#include <utility>

namespace self_attention {

/// The arguments of the op `self_attention::attention`, as ops take them and as C++ does.
struct AttentionArguments {
  AttentionArguments(torch::Tensor query_, torch::Tensor key_, torch::Tensor value_,
                     const std::optional<torch::Tensor>& mask_, double scale_, bool is_causal_,
                     double dropout_p_ = 0, const std::optional<torch::Tensor>& seed_ = {})
      : query(std::move(query_)),
        key(std::move(key_)),
        value(std::move(value_)),
        mask(mask_.value_or(torch::Tensor())),
        scale(scale_),
        is_causal(is_causal_),
        dropout_p(dropout_p_),
        seed(seed_.value_or(torch::Tensor())) {}

  std::optional<torch::Tensor> optional_mask() const {
    return mask.defined() ? std::optional(mask) : std::nullopt;
  }
  std::optional<torch::Tensor> optional_seed() const {
    return seed.defined() ? std::optional(seed) : std::nullopt;
  }

  torch::Tensor query;  ///< (N, H, Q, d)
  torch::Tensor key;    ///< (N, H, K, d)
  torch::Tensor value;  ///< (N, H, K, dv)
  torch::Tensor mask;   ///< broadcasts to (N, H, Q, K), or undefined
  double scale;
  bool is_causal;
  double dropout_p;    ///< share of the weights that are dropped
  torch::Tensor seed;  ///< of those, int64 without dimensions; undefined until it is drawn
};

/// A result, and of each of its rows the largest score and the sum of the weights that it came
/// from, float32 (N, H, Q), as the fused kernel's gradients need them.
struct AttentionResult {
  torch::Tensor output;
  torch::Tensor row_maxima;
  torch::Tensor row_sums;
};

/// An uninitialised result, (N, H, Q, dv) in memory laid out (N, Q, H, dv).
torch::Tensor empty_result(const AttentionArguments& arguments);

/// The same with room for the rows' maxima and sums, which are zero where the output is empty.
AttentionResult empty_attention_result(const AttentionArguments& arguments);

/// An uninitialised gradient of query, key or value, laid out as their projections are.
torch::Tensor empty_gradient(const torch::Tensor& input);

/// The mask with causality in it; undefined where there is neither.
torch::Tensor combined_mask(const AttentionArguments& arguments);

/// Throws unless `dropout_p` is a number from 0 to 1.
void check_dropout(std::string_view who, std::string_view argument, double dropout_p);

/// Throws unless the arguments fit each other, as ops/attention.h says.
void check_attention(const AttentionArguments& arguments);

}  // namespace self_attention
