#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernel/dropout.h"

namespace self_attention::cpu {

/// Element types of tensors.
enum class ElementKind : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr std::int64_t element_bytes(ElementKind kind) {
  return kind == ElementKind::kFloat32 ? 4 : 2;
}

/// Batch, head, row, column; in elements.
using Strides = std::array<std::int64_t, 4>;

/// A 4-dimensional tensor in memory. Strides may be anything, 0 included.
struct ConstView {
  const void* data = nullptr;
  Strides strides = {};
};

/// What the bits of a mask's element mean: keep where it is not zero.
struct MaskView {
  const void* data = nullptr;  ///< nullptr: no mask
  Strides strides = {};
  std::uint8_t element_bytes = 1;  ///< 1, 2, 4 or 8
  bool has_sign = false;           ///< floating: the sign bit does not count, since -0.0 is zero
};

/// One call of attention:
///
///     score = scale · query keyᵀ, and exactly scale · −1e20 where the mask or causality masks
///     output = softmax(score) value
///
/// Causal keeps key j for query i where j ≤ i. Everything inside is float32.
struct AttentionProblem {
  ElementKind row_kind() const { return float32_rows ? ElementKind::kFloat32 : kind; }

  ConstView query;         ///< (batch, heads, query_length, head_dim)
  ConstView key;           ///< (batch, heads, key_length, head_dim)
  ConstView value;         ///< (batch, heads, key_length, value_dim)
  void* output = nullptr;  ///< (batch, heads, query_length, value_dim), last stride 1
  Strides output_strides = {};
  MaskView mask;  ///< seen as (batch, heads, query_length, key_length)
  ElementKind kind = ElementKind::kFloat32;
  bool float32_rows = false;  ///< query and output are float32, whatever `kind` key and value are
  std::size_t batch = 0;
  std::size_t heads = 0;
  std::size_t query_length = 0;
  std::size_t key_length = 0;
  std::size_t head_dim = 0;
  std::size_t value_dim = 0;
  float scale = 1;
  bool causal = false;
  Dropout dropout;  ///< of the weights, after the softmax
  /// Where a row's largest score and its sum of weights go, (batch, heads, query_length) each, for
  /// the gradients; or nullptr. See RowSums.
  float* row_maxima = nullptr;
  float* row_sums = nullptr;
};

/// A 4-dimensional tensor to be written, last stride 1; without data it is not wanted.
struct OutputView {
  void* data = nullptr;
  Strides strides = {};
};

/// The gradients of one call. With P the weights, dO the output's gradient and
/// D_i = Σ_c dO_ic O_ic:
///
///     dV = Pᵀ dO     dS = scale · P ∘ (dO Vᵀ − D)     dQ = dS K     dK = dSᵀ Q
///
/// and under dropout with (P ∘ factors) in the first and (dO Vᵀ ∘ factors) in the second. Masked
/// scores are constants: their dS is zero (Dao and others 2022, algorithm 4).
struct GradientProblem {
  AttentionProblem call;  ///< its row_maxima and row_sums as attention wrote them; no output
  ConstView output;       ///< (batch, heads, query_length, value_dim), as attention wrote it
  ConstView grad_output;
  OutputView grad_query;
  OutputView grad_key;
  OutputView grad_value;
};

}  // namespace self_attention::cpu
