#include "backends/reference/attention.h"

#include "backends/reference/masked_softmax.h"

namespace self_attention::reference {

torch::Tensor attention(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  const torch::Tensor& key = arguments.key;
  torch::Tensor mask = arguments.mask;
  if (arguments.is_causal) {
    const torch::Tensor causal =
        torch::ones({query.size(2), key.size(2)},
                    query.options().dtype(torch::kBool).requires_grad(false))
            .tril();
    mask = mask.defined() ? causal.logical_and(mask != 0) : causal;
  }
  const torch::Tensor scores = torch::matmul(query, key.transpose(-2, -1));
  const torch::Tensor weights = masked_softmax(scores, mask, 1 / arguments.scale);
  return torch::matmul(weights, arguments.value).transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace self_attention::reference
