#pragma once

#include <torch/types.h>

namespace self_attention::reference {

/// A seed for drop() from the default generator of the CPU, whatever the device: int64, no
/// dimensions. An operation of LibTorch, so that transforms have their say in it.
torch::Tensor draw_seed();

/// Weights (N, H, Q, K) with a share of `p` set to zero, and the others divided by 1 − p.
///
/// Which ones follows from the seed and the place alone, by the hash of the fused kernel
/// (backends/cpu/kernel/dropout.h): one seed drops the same everywhere.
torch::Tensor drop(const torch::Tensor& weights, double p, const torch::Tensor& seed);

}  // namespace self_attention::reference
