#pragma once

#include <torch/types.h>

#include <string>

#include "ops/attention_arguments.h"

namespace self_attention::cpu {

/// Why the fused kernel cannot run checked arguments of that dtype, device and number of keys;
/// empty where it can.
std::string ineligible_because(const torch::Tensor& query, std::int64_t key_length, double scale);

/// The fused kernel. Gradients are not recorded. Key and value may also be of 16 bits beside a
/// float32 query, whose dtype the result has.
torch::Tensor attention(const AttentionArguments& arguments);

/// "cpu/avx2": the kernel that attention() runs.
std::string kernel_name();

}  // namespace self_attention::cpu
