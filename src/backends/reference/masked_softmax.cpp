#include "backends/reference/masked_softmax.h"

namespace self_attention::reference {

torch::Tensor masked_softmax(const torch::Tensor& scores, const torch::Tensor& mask,
                             double divisor) {
  if (!mask.defined()) {
    return torch::softmax(scores / divisor, -1);
  }
  const bool too_narrow = scores.scalar_type() == torch::kFloat16;
  const torch::Tensor wide = too_narrow ? scores.to(torch::kFloat32) : scores;
  const torch::Tensor weights =
      torch::softmax(wide.masked_fill(mask == 0, kMaskedScore) / divisor, -1);
  return too_narrow ? weights.to(torch::kFloat16) : weights;
}

}  // namespace self_attention::reference
