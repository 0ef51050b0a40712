#include <torch/library.h>

#include "backends/aten/sdpa_attention.h"
#include "ops/attention_arguments.h"

namespace self_attention {
namespace {

torch::Tensor attention_cuda(const torch::Tensor& query, const torch::Tensor& key,
                             const torch::Tensor& value, const std::optional<torch::Tensor>& mask,
                             double scale, bool is_causal) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal};
  check_attention(arguments);
  return aten::attention(arguments);
}

TORCH_LIBRARY_IMPL(self_attention, CUDA, library) { library.impl("attention", attention_cuda); }

}  // namespace
}  // namespace self_attention
