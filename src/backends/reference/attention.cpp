#include "backends/reference/attention.h"

#include "backends/reference/dropout.h"
#include "backends/reference/masked_softmax.h"

namespace self_attention::reference {

torch::Tensor attention(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  const torch::Tensor& key = arguments.key;
  const torch::Tensor scores = torch::matmul(query, key.transpose(-2, -1));
  torch::Tensor weights = masked_softmax(scores, combined_mask(arguments), 1 / arguments.scale);
  if (arguments.dropout_p > 0) weights = drop(weights, arguments.dropout_p, arguments.seed);
  return torch::matmul(weights, arguments.value).transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace self_attention::reference
