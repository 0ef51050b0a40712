#pragma once

#include <torch/types.h>

#include <optional>
#include <utility>

namespace self_attention {

/// The arguments of the op `self_attention::attention`, as ops take them and as C++ does.
struct AttentionArguments {
  AttentionArguments(torch::Tensor query_, torch::Tensor key_, torch::Tensor value_,
                     const std::optional<torch::Tensor>& mask_, double scale_, bool is_causal_)
      : query(std::move(query_)),
        key(std::move(key_)),
        value(std::move(value_)),
        mask(mask_.value_or(torch::Tensor())),
        scale(scale_),
        is_causal(is_causal_) {}

  std::optional<torch::Tensor> optional_mask() const {
    return mask.defined() ? std::optional(mask) : std::nullopt;
  }

  torch::Tensor query;  ///< (N, H, Q, d)
  torch::Tensor key;    ///< (N, H, K, d)
  torch::Tensor value;  ///< (N, H, K, dv)
  torch::Tensor mask;   ///< broadcasts to (N, H, Q, K), or undefined
  double scale;
  bool is_causal;
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

/// Throws unless the arguments fit each other, as ops/attention.h says.
void check_attention(const AttentionArguments& arguments);

}  // namespace self_attention
