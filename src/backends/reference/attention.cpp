#include "backends/reference/attention.h"

#include "backends/reference/dropout.h"
#include "backends/reference/masked_softmax.h"

namespace self_attention::reference {

namespace {

torch::Tensor transposed(const torch::Tensor& matrices) { return matrices.transpose(-2, -1); }

torch::Tensor scores_of(const AttentionArguments& arguments) {
  return torch::matmul(arguments.query, transposed(arguments.key));
}

torch::Tensor dropped(const AttentionArguments& arguments, const torch::Tensor& weights) {
  return arguments.dropout_p > 0 ? drop(weights, arguments.dropout_p, arguments.seed) : weights;
}

}  // namespace

torch::Tensor attention(const AttentionArguments& arguments) {
  const torch::Tensor weights =
      masked_softmax(scores_of(arguments), combined_mask(arguments), 1 / arguments.scale);
  const torch::Tensor result = torch::matmul(dropped(arguments, weights), arguments.value);
  return result.transpose(1, 2).contiguous().transpose(1, 2);
}

std::array<torch::Tensor, 3> attention_gradients(const AttentionArguments& arguments,
                                                 const torch::Tensor& grad_output,
                                                 std::array<bool, 3> wanted) {
  const torch::ScalarType type = arguments.query.scalar_type();
  const double divisor = 1 / arguments.scale;
  const torch::Tensor mask = combined_mask(arguments);
  const torch::Tensor weights = wide_masked_softmax(scores_of(arguments), mask, divisor);
  std::array<torch::Tensor, 3> gradients;
  if (wanted[2]) {
    gradients[2] = torch::matmul(transposed(dropped(arguments, weights.to(type))), grad_output);
  }
  if (!wanted[0] && !wanted[1]) return gradients;
  const torch::Tensor grad_weights =
      dropped(arguments, torch::matmul(grad_output, transposed(arguments.value)));
  const torch::Tensor grad_scores =
      masked_softmax_gradient(grad_weights, weights, mask, divisor).to(type);
  if (wanted[0]) gradients[0] = torch::matmul(grad_scores, arguments.key);
  if (wanted[1]) gradients[1] = torch::matmul(transposed(grad_scores), arguments.query);
  return gradients;
}

}  // namespace self_attention::reference
