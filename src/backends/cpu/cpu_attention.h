#pragma once

#include <torch/types.h>

#include <array>
#include <string>

#include "ops/attention_arguments.h"

namespace self_attention::cpu {

/// Why the fused kernel cannot run checked arguments of that dtype, device and number of keys;
/// empty where it can.
std::string ineligible_because(const torch::Tensor& query, std::int64_t key_length, double scale);

/// The fused kernel. Gradients are not recorded. Key and value may also be of 16 bits beside a
/// float32 query, whose dtype the result has.
torch::Tensor attention(const AttentionArguments& arguments);

/// The same with the axes of query, key, value and result as projections give them, (N, L, H, d).
torch::Tensor attention_of_rows(const AttentionArguments& arguments);

/// The same with what its gradients need.
AttentionResult attention_with_sums(const AttentionArguments& arguments);

/// The gradients of query, key and value, undefined where `wanted` is false, by the fused kernel.
std::array<torch::Tensor, 3> attention_gradients(const AttentionArguments& arguments,
                                                 const AttentionResult& result,
                                                 const torch::Tensor& grad_output,
                                                 std::array<bool, 3> wanted);

/// "cpu/avx2": the kernel that attention() runs.
std::string kernel_name();

}  // namespace self_attention::cpu
