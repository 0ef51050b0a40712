#pragma once

#include <torch/types.h>

#include <array>

#include "ops/attention_arguments.h"

namespace self_attention::reference {

/// attention() by LibTorch's operations: in the dtype of the inputs, every one differentiable any
/// number of times, for every device and transform. Under dropout the arguments must have a seed.
torch::Tensor attention(const AttentionArguments& arguments);

/// Its gradients of query, key and value, those that are wanted, from that of its result; likewise
/// differentiable.
std::array<torch::Tensor, 3> attention_gradients(const AttentionArguments& arguments,
                                                 const torch::Tensor& grad_output,
                                                 std::array<bool, 3> wanted);

}  // namespace self_attention::reference
