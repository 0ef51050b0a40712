#pragma once

#include <self_attention/api.h>
#include <torch/types.h>

#include <cstdint>

/// Shapes and masks
/// ----------------
/// Letters used throughout the library:
///
///     N  batch          Q  query length      K  key (and value) length
///     E  embedding      H  heads             d  head size, E / H rounded down
///
/// Inputs are (N, Q, E) for the query, (N, K, E) for keys and values, batch first, with any
/// strides; the output is (N, Q, E), contiguous. Dtypes: float64, float32, bfloat16, float16, the
/// same for inputs and parameters unless autocast is on.
///
/// **A mask says what to keep.** A score takes part where the mask is not zero and is masked where
/// `mask == 0`: false, 0 and −0.0 mask; true, 1, 0.3, NaN and −inf keep. Any dtype will do. This is
/// the opposite of torch::nn::MultiheadAttention, where true drops a key, and has nothing to do
/// with additive masks (0 keep, −inf drop), which would do the reverse here.
///
/// A mask broadcasts to the scores (N, H, Q, K) by the usual rules, from the right:
///
///     (N, 1, 1, K)  padding: the keys of each sequence          mask_from_lengths
///     (Q, K)        one mask for every sequence and head        causal_mask
///     (1, H, Q, K)  one mask a head
///
/// (N, K) is never read as a padding mask: it broadcasts as (Q, K) or is refused.
///
/// A masked score becomes exactly −1e20 before it is scaled. So a query whose keys are all masked
/// attends to all of them evenly: its output is the projected mean of the values, never NaN or
/// zero.
namespace self_attention {

/// Padding mask from the number of valid keys of each sequence: true for key j of sequence n where
/// j < lengths[n].
///
/// `lengths`: (N), any integer dtype, each from 0 to `key_length`. Returns bool (N, 1, 1, K) on the
/// device of `lengths`. Throws c10::ValueError or c10::TypeError for anything else. Reads the
/// lengths, which waits for the device if they are on one.
SELF_ATTENTION_API torch::Tensor mask_from_lengths(const torch::Tensor& lengths,
                                                   int64_t key_length);

/// Causal mask: true for query i and key j where j <= i.
///
/// Aligned at the top left, as `torch.tril`: query 0 sees key 0 alone whatever the lengths, so for
/// a single query against a cache of keys this is not the mask to use. Returns bool (Q, K) on
/// `device`. Throws c10::ValueError for a negative length.
SELF_ATTENTION_API torch::Tensor causal_mask(int64_t query_length, int64_t key_length,
                                             torch::Device device = torch::kCPU);

/// Padding mask from torch::nn::MultiheadAttention's `key_padding_mask`, in which true marks the
/// padding to leave out: the result is its negation, with axes for heads and queries.
///
/// `key_padding_mask`: bool (N, K). Returns bool (N, 1, 1, K) on the same device. Throws
/// c10::TypeError for another dtype (a float key_padding_mask is added to the scores and has no
/// equivalent here) and c10::ValueError for another rank.
SELF_ATTENTION_API torch::Tensor mask_from_key_padding_mask(const torch::Tensor& key_padding_mask);

}  // namespace self_attention
