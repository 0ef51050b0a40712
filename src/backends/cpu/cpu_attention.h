#pragma once

#include <torch/types.h>

#include <string>

#include "ops/attention_arguments.h"

namespace self_attention::cpu {

/// Why the fused kernel cannot run these checked arguments; empty where it can.
std::string ineligible_because(const AttentionArguments& arguments);

/// The fused kernel. Gradients are not recorded.
torch::Tensor attention(const AttentionArguments& arguments);

/// "cpu/avx2": the kernel that attention() runs.
std::string kernel_name();

}  // namespace self_attention::cpu
