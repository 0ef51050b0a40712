#include "backends/aten/sdpa_attention.h"
#include "backends/reference/attention.h"
#include "ops/attention_op.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

torch::Tensor attention_cuda(const torch::Tensor& query, const torch::Tensor& key,
                             const torch::Tensor& value, const std::optional<torch::Tensor>& mask,
                             double scale, bool is_causal, double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  check_attention(arguments);
  // SDPA's dropout could not be found again for the gradients.
  return dropout_p > 0 ? reference::attention(seeded(arguments)) : aten::attention(arguments);
}

SELF_ATTENTION_KERNELS(CUDA, library) { library.impl("attention", attention_cuda); }

}  // namespace
}  // namespace self_attention
