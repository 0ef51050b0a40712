#pragma once

#include <torch/types.h>

#include "ops/attention_arguments.h"

namespace self_attention::aten {

/// attention() by LibTorch's scaled_dot_product_attention, for devices that have no kernel here.
///
/// Rows that keep no key are overwritten with the mean of the values, and keys and values that no
/// query keeps are zeroed before the product. Follows SDPA where the formula differs: a number that
/// is not finite in a key that only some queries keep, and real scores below −1e20. Does not wait
/// for the device.
torch::Tensor attention(const AttentionArguments& arguments);

}  // namespace self_attention::aten
