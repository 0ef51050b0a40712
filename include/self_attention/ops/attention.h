#pragma once

#include <self_attention/api.h>
#include <torch/arg.h>
#include <torch/types.h>

#include <string>

namespace self_attention {

/// Which implementation a module or a call of attention() uses.
enum class Backend {
  Auto,   ///< the fused kernel where it is eligible and pays, else the reference
  Eager,  ///< the Python classes' operations one by one: equal to them to the bit
  Fused,  ///< the fused kernel; an error that says why where it is not eligible
};

/// Options of attention().
struct SELF_ATTENTION_API AttentionOptions {
  /// The others at their defaults.
  explicit AttentionOptions(double scale) : scale_(scale) {}

  /// What scores are multiplied with, finite and positive, usually 1/√d.
  TORCH_ARG(double, scale);
  /// Keeps key j for query i where j ≤ i, aligned at the top left as torch.tril: a single query
  /// keeps key 0 alone. Together with a mask, a key is kept where both keep it.
  TORCH_ARG(bool, is_causal) = false;
  /// The share of the weights that are dropped, from 0 to 1, for training alone: those become zero
  /// and the others are divided by 1 − dropout_p.
  TORCH_ARG(double, dropout_p) = 0;
};

/// Attention without projections, the op `self_attention::attention`:
///
///     score = scale · query keyᵀ, and scale · −1e20 where mask == 0 or causality masks
///     output = softmax(score) value
///
/// query (N, H, Q, d), key (N, H, K, d), value (N, H, K, dv), any strides, one floating dtype and
/// device; `mask` as in shapes.h, undefined for none. Returns (N, H, Q, dv), whose memory is laid
/// out (N, Q, H, dv), so that merging the heads costs nothing. A query that keeps no key attends to
/// all keys evenly, those that causality masks too; no keys (K = 0) give zeros.
///
/// Dropped weights are drawn anew in each call, by a seed from the CPU's default generator on every
/// device, which torch::manual_seed sets: a weight's place and the seed decide, whatever kernel
/// runs and on however many threads, and gradients find the same weights again without a table.
///
/// On the CPU float32, bfloat16 and float16 run in a fused kernel: one pass, float32 inside, no
/// (Q, K) matrix in memory, the same bits for every number of threads. A number that is not finite
/// in a masked key or value may be ignored. A thread takes some megabytes beside inputs and
/// output, and four bytes a key under a padding mask; it keeps up to 4 MiB of them for its next
/// call. Gradients come from the fused kernel likewise, by the op
/// `self_attention::attention_backward`, from the output and two floats a row; with fewer than 16
/// heads in all and many keys they also take several times the query's size. In those of bfloat16
/// and float16 the rounded output is an operand. Second derivatives, forward mode and function
/// transforms go through the reference formula. Also registered for CUDA, Meta, autocast and vmap,
/// and from Python it is torch.ops.self_attention.attention.
///
/// Throws c10::ValueError for a shape, device, layout or scale that does not fit and c10::TypeError
/// for dtypes. Source: Vaswani et al. 2017, section 3.2.1; the online softmax of the fused kernel
/// is that of Milakov and Gimelshein 2018, its gradients those of Dao et al. 2022, algorithm 4.
SELF_ATTENTION_API torch::Tensor attention(const torch::Tensor& query, const torch::Tensor& key,
                                           const torch::Tensor& value, const torch::Tensor& mask,
                                           const AttentionOptions& options);

/// What attention() would run.
struct SELF_ATTENTION_API AttentionKernel {
  std::string name;    ///< "cpu/avx512", "cpu/avx2", …, "cuda/sdpa" or "reference"
  std::string reason;  ///< why it is the reference; else empty
};

/// Which kernel attention() runs for such arguments, and why not a fused one. Throws like it.
SELF_ATTENTION_API AttentionKernel attention_kernel(const torch::Tensor& query,
                                                    const torch::Tensor& key,
                                                    const torch::Tensor& value,
                                                    const torch::Tensor& mask,
                                                    const AttentionOptions& options);

}  // namespace self_attention
