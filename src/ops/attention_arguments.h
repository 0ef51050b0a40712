#pragma once

#include <torch/types.h>

namespace self_attention {

/// The arguments of the op `self_attention::attention`.
struct AttentionArguments {
  torch::Tensor query;  ///< (N, H, Q, d)
  torch::Tensor key;    ///< (N, H, K, d)
  torch::Tensor value;  ///< (N, H, K, dv)
  torch::Tensor mask;   ///< broadcasts to (N, H, Q, K), or undefined
  double scale;
  bool is_causal;
};

/// An uninitialised result, (N, H, Q, dv) in memory laid out (N, Q, H, dv).
torch::Tensor empty_result(const AttentionArguments& arguments);

/// The mask with causality in it; undefined where there is neither.
torch::Tensor combined_mask(const AttentionArguments& arguments);

/// Throws unless the arguments fit each other, as ops/attention.h says.
void check_attention(const AttentionArguments& arguments);

}  // namespace self_attention
