#include "backends/reference/attention.h"
#include "ops/attention_op.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

/// Under vmap: the operations of the formula know how to be batched.
torch::Tensor attention_batched(const torch::Tensor& query, const torch::Tensor& key,
                                const torch::Tensor& value,
                                const std::optional<torch::Tensor>& mask, double scale,
                                bool is_causal, double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  check_attention(arguments);
  return reference::attention(seeded(arguments));
}

SELF_ATTENTION_KERNELS(FuncTorchBatched, library) { library.impl("attention", attention_batched); }

}  // namespace
}  // namespace self_attention
