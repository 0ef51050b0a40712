#include "backends/reference/masked_softmax.h"

namespace self_attention::reference {

torch::Tensor wide_masked_softmax(const torch::Tensor& scores, const torch::Tensor& mask,
                                  double divisor) {
  if (!mask.defined()) return torch::softmax(scores / divisor, -1);
  const bool too_narrow = scores.scalar_type() == torch::kFloat16;
  const torch::Tensor wide = too_narrow ? scores.to(torch::kFloat32) : scores;
  return torch::softmax(wide.masked_fill(mask == 0, kMaskedScore) / divisor, -1);
}

torch::Tensor masked_softmax(const torch::Tensor& scores, const torch::Tensor& mask,
                             double divisor) {
  return wide_masked_softmax(scores, mask, divisor).to(scores.scalar_type());
}

torch::Tensor masked_softmax_gradient(const torch::Tensor& grad_weights,
                                      const torch::Tensor& weights, const torch::Tensor& mask,
                                      double divisor) {
  const torch::Tensor grad_scores =
      at::_softmax_backward_data(grad_weights.to(weights.scalar_type()), weights, -1,
                                 weights.scalar_type()) /
      divisor;
  return mask.defined() ? grad_scores.masked_fill(mask == 0, 0) : grad_scores;
}

}  // namespace self_attention::reference
