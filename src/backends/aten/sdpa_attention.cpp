#include "backends/aten/sdpa_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

namespace self_attention::aten {

torch::Tensor attention(const AttentionArguments& arguments) {
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  if (key.size(2) == 0) return empty_result(arguments).zero_();
  torch::Tensor output;
  if (!mask.defined()) {
    output = at::scaled_dot_product_attention(query, key, value, {}, 0.0, is_causal, scale);
  } else {
    const torch::Tensor keep =
        (combined_mask(arguments) != 0)
            .expand({query.size(0), query.size(1), query.size(2), key.size(2)});
    const torch::Tensor used = keep.any(-2).unsqueeze(-1);
    const torch::Tensor zero = torch::zeros({}, query.options());
    const torch::Tensor attended = at::scaled_dot_product_attention(
        query, torch::where(used, key, zero), torch::where(used, value, zero), keep, 0.0,
        /*is_causal=*/false, scale);
    output = torch::where(keep.any(-1, /*keepdim=*/true), attended, value.mean(2, true));
  }
  return output.transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace self_attention::aten
