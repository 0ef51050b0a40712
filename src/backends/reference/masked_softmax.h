#pragma once

#include <torch/types.h>

namespace self_attention::reference {

/// What a masked score becomes before it is scaled. Finite, so that a row with every key masked is
/// uniform instead of NaN.
inline constexpr double kMaskedScore = -1e20;

/// softmax(scores / divisor) over the last axis, with scores set to kMaskedScore where mask == 0.
///
/// scores (N, H, Q, K), floating; mask broadcasts to them or is undefined. Same shape and dtype
/// out. Every step is one of the Python classes' operations, in the dtype of the scores.
/// kMaskedScore does not fit float16: there a masked call computes in float32 and rounds once at
/// the end.
torch::Tensor masked_softmax(const torch::Tensor& scores, const torch::Tensor& mask,
                             double divisor);

/// The same before it is rounded: float32 where the scores are float16 and there is a mask.
torch::Tensor wide_masked_softmax(const torch::Tensor& scores, const torch::Tensor& mask,
                                  double divisor);

/// The gradient of the scores, in the dtype of `weights`, from that of the weights, which
/// wide_masked_softmax() gave: zero where mask == 0.
torch::Tensor masked_softmax_gradient(const torch::Tensor& grad_weights,
                                      const torch::Tensor& weights, const torch::Tensor& mask,
                                      double divisor);

}  // namespace self_attention::reference
