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

/// Sizes of an InferredLengthAttention.
struct SELF_ATTENTION_API InferredLengthAttentionOptions {
  /// Any sizes: the module checks them.
  InferredLengthAttentionOptions(int64_t embed_size, int64_t heads)
      : embed_size_(embed_size), heads_(heads) {}

  /// E, the last dimension of the output. Positive.
  TORCH_ARG(int64_t, embed_size);
  /// H, from 1 to embed_size; it need not divide embed_size.
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

/// InferredLengthAttention with the parameters passed in.
///
/// values, keys and queries as in InferredLengthAttentionImpl::forward, `mask` as in shapes.h,
/// undefined for none. values_weight, keys_weight and queries_weight are (d, d), shared by the
/// heads; fc_out_weight is (E, H·d) and fc_out_bias (E). Throws like the module's forward.
/// With Backend::Auto also an op, torch.ops.self_attention.inferred_length_attention in Python.
SELF_ATTENTION_API torch::Tensor inferred_length_attention(
    const torch::Tensor& values, const torch::Tensor& keys, const torch::Tensor& queries,
    const torch::Tensor& mask, const torch::Tensor& values_weight, const torch::Tensor& keys_weight,
    const torch::Tensor& queries_weight, const torch::Tensor& fc_out_weight,
    const torch::Tensor& fc_out_bias, int64_t heads, Backend backend = Backend::Auto,
    bool is_causal = false, double dropout_p = 0);

}  // namespace functional

/// SharedProjectionAttention that infers the lengths from the number of elements.
///
/// Every input is reshaped to (N, length, H, d), with N the first size of `queries`, d = E/H
/// rounded down, and whatever length the elements give. Where H·d = E and all batches agree this is
/// SharedProjectionAttention. Elsewhere the reshape moves elements from one axis to another, as the
/// Python class does: with E = 6 and H = 4, so d = 1, an input (1, 2, 6) has length 3 and gives
/// (1, 3, 6); values and keys (4, 3, E) beside queries (2, 3, E) are read as (2, 6, E), mixing
/// sequences of different batch rows. The first call in a process that does so warns.
///
/// The equations are those of SharedProjectionAttention, on the reshaped inputs; the scores are
/// divided by √E. Source: the Python class this is the twin of.
///
/// Parameters, in order: values.weight, keys.weight, queries.weight (d, d), fc_out.weight (E, H·d),
/// fc_out.bias (E). Under the same seed they start with the values that the Python class draws.
class SELF_ATTENTION_API InferredLengthAttentionImpl
    : public torch::nn::Cloneable<InferredLengthAttentionImpl> {
 public:
  /// The other options at their defaults. Throws as below.
  InferredLengthAttentionImpl(int64_t embed_size, int64_t heads)
      : InferredLengthAttentionImpl(InferredLengthAttentionOptions(embed_size, heads)) {}
  /// Throws c10::ValueError unless 1 <= heads <= embed_size and dropout is from 0 to 1.
  explicit InferredLengthAttentionImpl(const InferredLengthAttentionOptions& options);

  /// Makes the children anew, from `options`, with new values. Throws as the constructor.
  void reset() override;
  /// Draws new values for all parameters, as in a new module.
  void reset_parameters();
  /// Writes "self_attention::InferredLengthAttention(embed_size=256, heads=8)", with
  /// is_causal and dropout where set.
  void pretty_print(std::ostream& stream) const override;

  /// values, keys, queries of any rank from 1 on, usually (N, K, E), (N, K, E), (N, Q, E)
  /// -> (N, Q', E), contiguous, with Q' = elements of queries / (N·H·d).
  ///
  /// `mask` keeps where it is not zero and broadcasts to (N, H, Q', K'), the lengths *after* the
  /// reshape; see shapes.h. K' = 0 gives fc_out.bias in every row, Q' = 0 an empty result. float16
  /// with a mask works, where the Python class raises. The module keeps nothing between calls, so
  /// threads may share it.
  ///
  /// Throws c10::ValueError for N = 0, elements that do not divide into N·H·d, values and keys of
  /// different length after the reshape (also length 1), a mask that does not broadcast, devices
  /// and layouts that do not fit, and c10::TypeError for integer inputs and for mixed dtypes
  /// outside autocast. A module whose parameters are inference tensors refuses to record gradients.
  torch::Tensor forward(const torch::Tensor& values, const torch::Tensor& keys,
                        const torch::Tensor& queries, const torch::Tensor& mask = {});

  /// forward() together with the weights that it gives the values, for a look at attention maps:
  /// the same arguments, checks and errors, then the output and softmax(score / √E).
  ///
  /// `average_weights` gives their mean over the heads, (N, Q, K), lengths after the reshape;
  /// otherwise they are (N, H, Q, K). Every row sums to one; a masked key has weight 0, and a query
  /// whose keys are all masked 1/K for each. Runs the operations of Backend::Eager whatever the
  /// option, equal to that to the bit, and keeps the scores in memory. Gradients are recorded
  /// through both results. Under dropout the weights are those before any is dropped.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(const torch::Tensor& values,
                                                                const torch::Tensor& keys,
                                                                const torch::Tensor& queries,
                                                                const torch::Tensor& mask = {},
                                                                bool average_weights = true);

 protected:
  FORWARD_HAS_DEFAULT_ARGS({3, torch::nn::AnyValue(torch::Tensor())})

 public:
  InferredLengthAttentionOptions options;  ///< those that the module was made with
  torch::nn::Linear values{nullptr};       ///< weight (d, d), no bias
  torch::nn::Linear keys{nullptr};         ///< weight (d, d), no bias
  torch::nn::Linear queries{nullptr};      ///< weight (d, d), no bias
  torch::nn::Linear fc_out{nullptr};       ///< weight (E, H·d) and bias (E)
};

/// Shares an InferredLengthAttentionImpl, as every module holder of LibTorch: a copy is the same
/// module.
TORCH_MODULE(InferredLengthAttention);

}  // namespace self_attention
