#pragma once

#include <torch/types.h>

#include "ops/attention_arguments.h"

namespace self_attention::reference {

/// attention() by LibTorch's operations: in the dtype of the inputs, every one differentiable any
/// number of times, for every device and transform. Under dropout the arguments must have a seed.
torch::Tensor attention(const AttentionArguments& arguments);

}  // namespace self_attention::reference
