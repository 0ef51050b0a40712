#pragma once

#include <self_attention/ops/attention.h>
#include <torch/types.h>

#include <string_view>

#include "ops/attention_arguments.h"

namespace self_attention {

/// The op through the dispatcher.
torch::Tensor call_attention(const AttentionArguments& arguments);

/// Whether autograd would record the call.
bool records_gradients(const AttentionArguments& arguments);

/// Whether a module with that backend runs the op, rather than the Python classes' operations.
/// Throws for Backend::Fused where the fused kernel is not eligible, naming why.
bool runs_fused(std::string_view who, Backend backend, const AttentionArguments& arguments);

}  // namespace self_attention
