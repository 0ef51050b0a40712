// The functional forms of the modules as ops of LibTorch, for Python and for TorchScript.
//
// Each is made of ops that every dispatch key knows, and so are its gradients and what compilation
// sees of it.

#include <self_attention/modules/full_projection_attention.h>
#include <self_attention/modules/inferred_length_attention.h>
#include <self_attention/modules/shared_projection_attention.h>

#include "ops/registration.h"

namespace self_attention {
namespace {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Of the two modules whose heads share projections.
template <const auto& kFunctional>
Tensor shared_heads(const Tensor& values, const Tensor& keys, const Tensor& query,
                    const OptionalTensor& mask, const Tensor& values_weight,
                    const Tensor& keys_weight, const Tensor& queries_weight,
                    const Tensor& fc_out_weight, const Tensor& fc_out_bias, int64_t heads,
                    bool is_causal, double dropout_p) {
  return kFunctional(values, keys, query, mask.value_or(Tensor()), values_weight, keys_weight,
                     queries_weight, fc_out_weight, fc_out_bias, heads, Backend::Auto, is_causal,
                     dropout_p);
}

constexpr auto& shared_projection_attention = shared_heads<functional::shared_projection_attention>;
constexpr auto& inferred_length_attention = shared_heads<functional::inferred_length_attention>;

Tensor full_projection_attention(const Tensor& values, const OptionalTensor& keys,
                                 const OptionalTensor& query, const OptionalTensor& mask,
                                 const Tensor& q_weight, const Tensor& q_bias,
                                 const Tensor& k_weight, const Tensor& k_bias,
                                 const Tensor& v_weight, const Tensor& v_bias,
                                 const Tensor& output_weight, const Tensor& output_bias,
                                 int64_t num_heads, bool is_causal, double dropout_p) {
  return functional::full_projection_attention(
      values, keys.value_or(Tensor()), query.value_or(Tensor()), mask.value_or(Tensor()), q_weight,
      q_bias, k_weight, k_bias, v_weight, v_bias, output_weight, output_bias, num_heads,
      Backend::Auto, is_causal, dropout_p);
}

SELF_ATTENTION_OPS(library) {
  library.def(
      "shared_projection_attention(Tensor values, Tensor keys, Tensor query, Tensor? mask, Tensor "
      "values_weight, Tensor keys_weight, Tensor queries_weight, Tensor fc_out_weight, Tensor "
      "fc_out_bias, int heads, bool is_causal=False, float dropout_p=0.0) -> Tensor",
      shared_projection_attention);
  library.def(
      "full_projection_attention(Tensor values, Tensor? keys, Tensor? query, Tensor? mask, Tensor "
      "q_weight, Tensor q_bias, Tensor k_weight, Tensor k_bias, Tensor v_weight, Tensor v_bias, "
      "Tensor output_weight, Tensor output_bias, int num_heads, bool is_causal=False, float "
      "dropout_p=0.0) -> Tensor",
      full_projection_attention);
  library.def(
      "inferred_length_attention(Tensor values, Tensor keys, Tensor queries, Tensor? mask, Tensor "
      "values_weight, Tensor keys_weight, Tensor queries_weight, Tensor fc_out_weight, Tensor "
      "fc_out_bias, int heads, bool is_causal=False, float dropout_p=0.0) -> Tensor",
      inferred_length_attention);
}

// Under vmap, which does not look into an op by itself.
SELF_ATTENTION_KERNELS(FuncTorchBatched, library) {
  library.impl("shared_projection_attention", shared_projection_attention);
  library.impl("full_projection_attention", full_projection_attention);
  library.impl("inferred_length_attention", inferred_length_attention);
}

}  // namespace
}  // namespace self_attention
