#include <torch/types.h>

#include "ops/attention_arguments.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

/// Sizes that torch.export leaves open: the kernel checks them when the program runs.
bool has_open_sizes(const AttentionArguments& arguments) {
  const auto open = [](const torch::Tensor& tensor) {
    return tensor.defined() && tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  return open(arguments.query) || open(arguments.key) || open(arguments.value) ||
         open(arguments.mask);
}

/// As empty_result.
torch::Tensor empty_open_result(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  return at::empty_symint(
             {query.sym_size(0), query.sym_size(2), query.sym_size(1), arguments.value.sym_size(3)},
             query.options())
      .transpose(1, 2);
}

/// Shapes alone: what export and compilation ask for.
torch::Tensor attention_meta(const torch::Tensor& query, const torch::Tensor& key,
                             const torch::Tensor& value, const std::optional<torch::Tensor>& mask,
                             double scale, bool is_causal, double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  if (has_open_sizes(arguments)) return empty_open_result(arguments);
  check_attention(arguments);
  return empty_result(arguments);
}

SELF_ATTENTION_KERNELS(Meta, library) { library.impl("attention", attention_meta); }

}  // namespace
}  // namespace self_attention
