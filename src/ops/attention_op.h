#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <self_attention/ops/attention.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "ops/attention_arguments.h"

namespace self_attention {

/// The op through the dispatcher.
torch::Tensor call_attention(const AttentionArguments& arguments);

/// The op without its checks, for arguments that have been checked and that the fused kernel is
/// eligible for, but with the axes of query, key, value and result as projections give them,
/// (N, L, H, d). Key and value may be of 16 bits beside a float32 query; the result has the query's
/// dtype.
torch::Tensor call_checked_attention(const AttentionArguments& arguments);

/// The fused kernel with what its gradients need, and those gradients, through the dispatcher.
AttentionResult call_attention_with_sums(const AttentionArguments& arguments);
std::array<torch::Tensor, 3> call_attention_backward(const AttentionArguments& arguments,
                                                     const AttentionResult& result,
                                                     const torch::Tensor& grad_output,
                                                     std::array<bool, 3> wanted);

/// With a seed where weights are dropped.
AttentionArguments seeded(AttentionArguments arguments);

/// Whether a module with that backend runs the op, with its projections folded, rather than the
/// Python classes' operations. `ineligible` says why the fused kernel cannot run its arguments and
/// is empty where it can; with Backend::Fused that is an error.
bool runs_fused(std::string_view who, Backend backend, const std::string& ineligible);

/// Whether autograd records what is computed from these.
template <typename... Tensors>
bool records_gradients(const torch::Tensor& first, const Tensors&... others) {
  return torch::GradMode::is_enabled() && (first.requires_grad() || ... || others.requires_grad());
}

/// Whether autograd would record the call.
bool records_gradients(const AttentionArguments& arguments);

/// Whether vmap or another function transform is at work. What their tensors stand for may be
/// recorded, which records_gradients() does not see.
bool under_function_transform();

/// Whether the tensor, if there is one, has a forward-mode derivative.
inline bool has_tangent(const torch::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

/// While this lives LibTorch's operations run below autograd, each about half a microsecond faster,
/// unless a derivative of what is computed from these tensors may be wanted. For results that are
/// views of none of them.
class BelowAutograd {
 public:
  template <typename... Tensors>
  explicit BelowAutograd(const Tensors&... tensors)
      : records_(records_gradients(tensors...) || under_function_transform()) {
    if (!records_ && !(has_tangent(tensors) || ...)) guard_.emplace();
  }

  /// Whether gradients are recorded, or may be under a function transform.
  bool records() const { return records_; }

 private:
  bool records_;
  std::optional<at::AutoDispatchBelowADInplaceOrView> guard_;
};

/// Whether derivatives are wanted that follow LibTorch's operations, not an autograd Function:
/// forward-mode ones and function transforms.
bool needs_formula(const AttentionArguments& arguments);

}  // namespace self_attention
