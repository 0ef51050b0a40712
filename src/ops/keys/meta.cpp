#include <torch/library.h>
#include <torch/types.h>

#include "ops/attention_arguments.h"

namespace self_attention {
namespace {

/// Shapes alone: what export and compilation ask for.
torch::Tensor attention_meta(const torch::Tensor& query, const torch::Tensor& key,
                             const torch::Tensor& value, const std::optional<torch::Tensor>& mask,
                             double scale, bool is_causal, double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  check_attention(arguments);
  return empty_result(arguments);
}

TORCH_LIBRARY_IMPL(self_attention, Meta, library) { library.impl("attention", attention_meta); }

}  // namespace
}  // namespace self_attention
