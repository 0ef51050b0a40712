#pragma once

#include <self_attention/api.h>
#include <self_attention/ops/attention.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <ostream>
#include <tuple>

namespace self_attention {

/// Sizes of a FullProjectionAttention.
struct SELF_ATTENTION_API FullProjectionAttentionOptions {
  /// Any sizes: the module checks them.
  FullProjectionAttentionOptions(int64_t embed_dim, int64_t num_heads)
      : embed_dim_(embed_dim), num_heads_(num_heads) {}

  /// E, the last dimension of inputs and output. Positive.
  TORCH_ARG(int64_t, embed_dim);
  /// H, which must divide embed_dim. Positive.
  TORCH_ARG(int64_t, num_heads);
  /// Which implementation runs. Auto is fused on the CPU, but for float64. What is fused moves
  /// projections to where they are cheapest, and computes 16 bits in float32 and rounds once.
  TORCH_ARG(Backend, backend) = Backend::Auto;
  /// Keeps key j for query i where j ≤ i, aligned at the top left as torch.tril: a single query
  /// keeps key 0 alone. Together with a mask, a key is kept where both keep it; a row that both
  /// leave without one attends to all keys evenly.
  TORCH_ARG(bool, is_causal) = false;
  /// The share of the attention weights that are dropped in training mode, from 0 to 1: those
  /// become zero and the others are divided by 1 − dropout. Drawn anew in each call, see
  /// ops/attention.h.
  TORCH_ARG(double, dropout) = 0;
};

namespace functional {

/// FullProjectionAttention with the parameters passed in.
///
/// values (N, K, E), keys (N, K, E), query (N, Q, E) -> (N, Q, E); keys and query both undefined
/// mean values for all three. `mask` as in shapes.h, undefined for none. The weights are (E, E),
/// the biases (E). Throws like FullProjectionAttentionImpl::forward.
/// With Backend::Auto also an op, torch.ops.self_attention.full_projection_attention in Python.
SELF_ATTENTION_API torch::Tensor full_projection_attention(
    const torch::Tensor& values, const torch::Tensor& keys, const torch::Tensor& query,
    const torch::Tensor& mask, const torch::Tensor& q_weight, const torch::Tensor& q_bias,
    const torch::Tensor& k_weight, const torch::Tensor& k_bias, const torch::Tensor& v_weight,
    const torch::Tensor& v_bias, const torch::Tensor& output_weight,
    const torch::Tensor& output_bias, int64_t num_heads, Backend backend = Backend::Auto,
    bool is_causal = false, double dropout_p = 0);

}  // namespace functional

/// Multi-head attention with full projections, the standard formula.
///
///     q = q_linear(query)   k = k_linear(keys)   v = v_linear(values)      each (E, E) with bias
///     and for head h, on the h-th piece of size d = E/H of each:
///     score_h = q_h k_hᵀ, set to −1e20 where mask == 0
///     out_h = softmax(score_h / √d) v_h
///     output = output_linear(out_1 … out_H)
///
/// Source: Vaswani et al. 2017, section 3.2; with the same weights this is
/// torch.nn.MultiheadAttention(E, H, batch_first=True).
///
/// **More than one head.** The Python class this is the twin of splits the heads first and then
/// applies an (E, E) layer to pieces of size d, which raises unless there is one head. Here the
/// projection comes first and the split after: equal to the Python class at one head, and the
/// standard formula beyond. The Python class takes `x` alone: that is forward(x).
///
/// Parameters, in order: q_linear, k_linear, v_linear, output_linear, each weight (E, E) and bias
/// (E). Under the same seed they start with the values that the Python class draws.
class SELF_ATTENTION_API FullProjectionAttentionImpl
    : public torch::nn::Cloneable<FullProjectionAttentionImpl> {
 public:
  /// The other options at their defaults. Throws as below.
  FullProjectionAttentionImpl(int64_t embed_dim, int64_t num_heads)
      : FullProjectionAttentionImpl(FullProjectionAttentionOptions(embed_dim, num_heads)) {}
  /// Throws c10::ValueError unless both sizes are positive, num_heads divides embed_dim and dropout
  /// is from 0 to 1.
  explicit FullProjectionAttentionImpl(const FullProjectionAttentionOptions& options);

  /// Makes the children anew, from `options`, with new values. Throws as the constructor.
  void reset() override;
  /// Draws new values for all parameters, as in a new module.
  void reset_parameters();
  /// Writes "self_attention::FullProjectionAttention(embed_dim=256, num_heads=8)", with
  /// is_causal and dropout where set.
  void pretty_print(std::ostream& stream) const override;

  /// values (N, K, E), keys (N, K, E), query (N, Q, E) -> (N, Q, E), contiguous.
  ///
  /// keys and query both undefined mean self-attention, forward(x) or forward(x, {}, {}, mask); one
  /// of them alone is refused. `mask` keeps where it is not zero and broadcasts to (N, H, Q, K),
  /// see shapes.h; undefined means that every key is kept. K = 0 gives output_linear.bias in every
  /// row; N = 0 and Q = 0 give empty results. The module keeps nothing between calls, so threads
  /// may share it.
  ///
  /// Throws c10::ValueError for a shape, device or layout that does not fit, values and keys of
  /// different length (also length 1) and a mask that does not broadcast to the scores, and
  /// c10::TypeError for integer inputs and for mixed dtypes outside autocast. A module whose
  /// parameters are inference tensors refuses to record gradients.
  torch::Tensor forward(const torch::Tensor& values, const torch::Tensor& keys = {},
                        const torch::Tensor& query = {}, const torch::Tensor& mask = {});

  /// forward() together with the weights that it gives the values, for a look at attention maps:
  /// the same arguments, checks and errors, then the output and softmax(score / √d).
  ///
  /// `average_weights` gives their mean over the heads, (N, Q, K); otherwise they are
  /// (N, H, Q, K). Every row sums to one; a masked key has weight 0, and a query whose keys are all
  /// masked 1/K for each. Runs the operations of Backend::Eager whatever the option, equal to that
  /// to the bit, and keeps the scores in memory. Gradients are recorded
  /// through both results. Under dropout the weights are those before any is dropped.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(const torch::Tensor& values,
                                                                const torch::Tensor& keys = {},
                                                                const torch::Tensor& query = {},
                                                                const torch::Tensor& mask = {},
                                                                bool average_weights = true);

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())},
                           {2, torch::nn::AnyValue(torch::Tensor())},
                           {3, torch::nn::AnyValue(torch::Tensor())})

 public:
  FullProjectionAttentionOptions options;    ///< those that the module was made with
  torch::nn::Linear q_linear{nullptr};       ///< weight (E, E) and bias (E)
  torch::nn::Linear k_linear{nullptr};       ///< weight (E, E) and bias (E)
  torch::nn::Linear v_linear{nullptr};       ///< weight (E, E) and bias (E)
  torch::nn::Linear output_linear{nullptr};  ///< weight (E, E) and bias (E)
};

/// Shares a FullProjectionAttentionImpl, as every module holder of LibTorch: a copy is the same
/// module.
TORCH_MODULE(FullProjectionAttention);

}  // namespace self_attention
