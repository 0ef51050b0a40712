#include <self_attention/ops/attention.h>
#include <torch/utils.h>

#include "backends/cpu/cpu_attention.h"
#include "backends/reference/dropout.h"
#include "ops/attention_arguments.h"
#include "ops/attention_op.h"
#include "ops/input_checks.h"
#include "ops/registration.h"

SELF_ATTENTION_OPS(library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? mask=None, *, float scale, bool "
      "is_causal=False, float dropout_p=0.0) -> Tensor",
      {at::Tag::nondeterministic_seeded});
}

namespace self_attention {

torch::Tensor call_attention(const AttentionArguments& arguments) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("self_attention::attention", "")
          .typed<torch::Tensor(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                               const std::optional<torch::Tensor>&, double, bool, double)>();
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  return op.call(query, key, value, arguments.optional_mask(), scale, is_causal, dropout_p);
}

AttentionArguments seeded(AttentionArguments arguments) {
  if (arguments.dropout_p > 0 && !arguments.seed.defined()) {
    arguments.seed = reference::draw_seed();
  }
  return arguments;
}

bool records_gradients(const AttentionArguments& arguments) {
  return records_gradients(arguments.query, arguments.key, arguments.value);
}

bool runs_fused(std::string_view who, Backend backend, const std::string& ineligible) {
  TORCH_CHECK_VALUE(
      backend != Backend::Fused || ineligible.empty(),
      message(who, "backend", "arguments that the fused kernel can run", "others: " + ineligible));
  return backend != Backend::Eager && ineligible.empty();
}

torch::Tensor attention(const torch::Tensor& query, const torch::Tensor& key,
                        const torch::Tensor& value, const torch::Tensor& mask,
                        const AttentionOptions& options) {
  // The dispatcher has no words for these.
  for (const NamedTensor& tensor : NamedTensors{{"query", query}, {"key", key}, {"value", value}}) {
    TORCH_CHECK_VALUE(tensor.tensor.defined(),
                      message("attention", tensor.name, "a tensor", "an undefined tensor"));
  }
  return call_attention(
      {query, key, value, mask, options.scale(), options.is_causal(), options.dropout_p()});
}

AttentionKernel attention_kernel(const torch::Tensor& query, const torch::Tensor& key,
                                 const torch::Tensor& value, const torch::Tensor& mask,
                                 const AttentionOptions& options) {
  const AttentionArguments arguments = {
      query, key, value, mask, options.scale(), options.is_causal(), options.dropout_p()};
  check_attention(arguments);
  if (query.is_cuda() && options.dropout_p() == 0) return {"cuda/sdpa", ""};
  std::string reason = cpu::ineligible_because(query, key.size(2), options.scale());
  if (!reason.empty()) return {"reference", std::move(reason)};
  return {cpu::kernel_name(), ""};
}

}  // namespace self_attention
