#include "ops/attention_arguments.h"

#include <torch/utils.h>

#include <cmath>

#include "ops/input_checks.h"

namespace self_attention {
namespace {

constexpr std::string_view kWho = "attention";

/// What did not fit. Made only then: the text would cost a short call a fifth of its time.
std::string misfit(std::string_view name, const torch::Tensor& tensor,
                   const std::string& expected) {
  return message(kWho, name, "shape " + expected, shape_text(tensor.sizes()));
}

}  // namespace

torch::Tensor empty_result(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  return torch::empty({query.size(0), query.size(2), query.size(1), arguments.value.size(3)},
                      query.options())
      .transpose(1, 2);
}

AttentionResult empty_attention_result(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  const torch::Tensor output = empty_result(arguments);
  const auto options = query.options().dtype(torch::kFloat32);
  const auto rows = [&] {
    const auto sizes = query.sizes().slice(0, 3);
    return output.numel() == 0 ? torch::zeros(sizes, options) : torch::empty(sizes, options);
  };
  return {output, rows(), rows()};
}

torch::Tensor empty_gradient(const torch::Tensor& input) {
  return torch::empty_like(input.transpose(1, 2), at::MemoryFormat::Contiguous).transpose(1, 2);
}

torch::Tensor combined_mask(const AttentionArguments& arguments) {
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  if (!is_causal) return mask;
  const auto options = query.options().dtype(torch::kBool).requires_grad(false);
  const torch::Tensor causal = torch::ones({query.size(2), key.size(2)}, options).tril();
  return mask.defined() ? causal.logical_and(mask != 0) : causal;
}

void check_dropout(std::string_view who, std::string_view argument, double dropout_p) {
  // Not that it is outside: NaN is neither.
  TORCH_CHECK_VALUE(dropout_p >= 0 && dropout_p <= 1,
                    message(who, argument, "a number from 0 to 1", c10::str(dropout_p)));
}

void check_attention(const AttentionArguments& arguments) {
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  const NamedTensors tensors = {{"query", query}, {"key", key}, {"value", value}};
  check_inputs(kWho, tensors, {"query", query});
  TORCH_CHECK_VALUE(query.dim() == 4 && query.size(3) > 0, misfit("query", query, "(N, H, Q, d)"));
  const int64_t batch = query.size(0);
  const int64_t heads = query.size(1);
  const int64_t head_dim = query.size(3);
  TORCH_CHECK_VALUE(
      key.dim() == 4 && key.size(0) == batch && key.size(1) == heads && key.size(3) == head_dim,
      misfit("key", key, c10::str("(N=", batch, ", H=", heads, ", K, d=", head_dim, ")")));
  const int64_t key_length = key.size(2);
  TORCH_CHECK_VALUE(
      value.dim() == 4 && value.size(0) == batch && value.size(1) == heads &&
          value.size(2) == key_length,
      misfit("value", value, c10::str("(N=", batch, ", H=", heads, ", K=", key_length, ", dv)")));
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0,
                    message(kWho, "scale", "a finite number above 0", c10::str(scale)));
  check_dropout(kWho, "dropout_p", dropout_p);
  check_mask(kWho, mask, {batch, heads, query.size(2), key_length}, query.device());
}

}  // namespace self_attention
