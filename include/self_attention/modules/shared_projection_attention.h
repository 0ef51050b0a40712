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

/// Sizes of a SharedProjectionAttention.
struct SELF_ATTENTION_API SharedProjectionAttentionOptions {
  /// Any sizes: the module checks them.
  SharedProjectionAttentionOptions(int64_t embed_size, int64_t heads)
      : embed_size_(embed_size), heads_(heads) {}

  /// E, the last dimension of inputs and output. Positive.
  TORCH_ARG(int64_t, embed_size);
  /// H, which must divide embed_size. Positive.
  TORCH_ARG(int64_t, heads);
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

/// SharedProjectionAttention with the parameters passed in.
///
/// values (N, K, E), keys (N, K, E), query (N, Q, E) -> (N, Q, E). `mask` as in shapes.h, undefined
/// for none. values_weight, keys_weight and queries_weight are (d, d), shared by the heads;
/// fc_out_weight is (E, E) and fc_out_bias (E). Throws like SharedProjectionAttentionImpl::forward.
/// With Backend::Auto also an op, torch.ops.self_attention.shared_projection_attention in Python.
SELF_ATTENTION_API torch::Tensor shared_projection_attention(
    const torch::Tensor& values, const torch::Tensor& keys, const torch::Tensor& query,
    const torch::Tensor& mask, const torch::Tensor& values_weight, const torch::Tensor& keys_weight,
    const torch::Tensor& queries_weight, const torch::Tensor& fc_out_weight,
    const torch::Tensor& fc_out_bias, int64_t heads, Backend backend = Backend::Auto,
    bool is_causal = false, double dropout_p = 0);

}  // namespace functional

/// Multi-head attention whose heads share one small projection each for values, keys and queries.
///
/// With x_h the h-th of the H pieces of size d = E/H of a row x:
///
///     q_h = W_q query_h    k_h = W_k keys_h    v_h = W_v values_h         W: (d, d), no bias
///     score_h = q_h k_hᵀ, set to −1e20 where mask == 0
///     out_h = softmax(score_h / √E) v_h
///     output = fc_out(out_1 … out_H)
///
/// Source: the Python class this is the twin of; Vaswani et al. 2017, section 3.2, except that the
/// scores are divided by √E, not by √d, and that the projections are shared by the heads.
///
/// Parameters, in order: values.weight, keys.weight, queries.weight (d, d), fc_out.weight (E, E),
/// fc_out.bias (E). Under the same seed they start with the values that the Python class draws.
class SELF_ATTENTION_API SharedProjectionAttentionImpl
    : public torch::nn::Cloneable<SharedProjectionAttentionImpl> {
 public:
  /// The other options at their defaults. Throws as below.
  SharedProjectionAttentionImpl(int64_t embed_size, int64_t heads)
      : SharedProjectionAttentionImpl(SharedProjectionAttentionOptions(embed_size, heads)) {}
  /// Throws c10::ValueError unless both sizes are positive, heads divides embed_size and dropout is
  /// from 0 to 1.
  explicit SharedProjectionAttentionImpl(const SharedProjectionAttentionOptions& options);

  /// Makes the children anew, from `options`, with new values. Throws as the constructor.
  void reset() override;
  /// Draws new values for all parameters, as in a new module.
  void reset_parameters();
  /// Writes "self_attention::SharedProjectionAttention(embed_size=256, heads=8)", with
  /// is_causal and dropout where set.
  void pretty_print(std::ostream& stream) const override;

  /// values (N, K, E), keys (N, K, E), query (N, Q, E) -> (N, Q, E), contiguous.
  ///
  /// `mask` keeps where it is not zero and broadcasts to (N, H, Q, K), see shapes.h; undefined
  /// means that every key is kept. K = 0 gives fc_out.bias in every row; N = 0 and Q = 0 give empty
  /// results. float16 with a mask works, where the Python class raises. The module keeps nothing
  /// between calls, so threads may share it.
  ///
  /// Throws c10::ValueError for a shape, device or layout that does not fit, values and keys of
  /// different length (also length 1) and a mask that does not broadcast to the scores, and
  /// c10::TypeError for integer inputs and for mixed dtypes outside autocast. A module whose
  /// parameters are inference tensors refuses to record gradients.
  torch::Tensor forward(const torch::Tensor& values, const torch::Tensor& keys,
                        const torch::Tensor& query, const torch::Tensor& mask = {});

  /// forward() together with the weights that it gives the values, for a look at attention maps:
  /// the same arguments, checks and errors, then the output and softmax(score / √E).
  ///
  /// `average_weights` gives their mean over the heads, (N, Q, K); otherwise they are
  /// (N, H, Q, K). Every row sums to one; a masked key has weight 0, and a query whose keys are all
  /// masked 1/K for each. Runs the operations of Backend::Eager whatever the option, equal to that
  /// to the bit, and keeps the scores in memory. Gradients are recorded
  /// through both results. Under dropout the weights are those before any is dropped.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(const torch::Tensor& values,
                                                                const torch::Tensor& keys,
                                                                const torch::Tensor& query,
                                                                const torch::Tensor& mask = {},
                                                                bool average_weights = true);

 protected:
  FORWARD_HAS_DEFAULT_ARGS({3, torch::nn::AnyValue(torch::Tensor())})

 public:
  SharedProjectionAttentionOptions options;  ///< those that the module was made with
  torch::nn::Linear values{nullptr};         ///< weight (d, d), no bias
  torch::nn::Linear keys{nullptr};           ///< weight (d, d), no bias
  torch::nn::Linear queries{nullptr};        ///< weight (d, d), no bias
  torch::nn::Linear fc_out{nullptr};         ///< weight (E, E) and bias (E)
};

/// Shares a SharedProjectionAttentionImpl, as every module holder of LibTorch: a copy is the same
/// module.
TORCH_MODULE(SharedProjectionAttention);

}  // namespace self_attention
