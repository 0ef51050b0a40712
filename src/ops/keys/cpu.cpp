#include "backends/cpu/cpu_attention.h"
#include "backends/reference/attention.h"
#include "ops/attention_op.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

torch::Tensor attention_cpu(const torch::Tensor& query, const torch::Tensor& key,
                            const torch::Tensor& value, const std::optional<torch::Tensor>& mask,
                            double scale, bool is_causal, double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  check_attention(arguments);
  return cpu::ineligible_because(query, key.size(2), scale).empty()
             ? cpu::attention(seeded(arguments))
             : reference::attention(seeded(arguments));
}

SELF_ATTENTION_KERNELS(CPU, library) { library.impl("attention", attention_cpu); }

}  // namespace
}  // namespace self_attention
