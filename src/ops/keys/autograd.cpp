#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/autograd.h>

#include "backends/cpu/cpu_attention.h"
#include "backends/reference/attention.h"
#include "ops/attention_op.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

torch::Tensor call_below_autograd(const AttentionArguments& arguments) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_attention(arguments);
}

/// Gradients by the fused kernel, from the result and its rows' maxima and sums. Where they are to
/// be differentiated once more, in either mode, and where the fused kernel is not eligible, by the
/// reference formula, for which the inputs are enough.
class DifferentiableAttention : public torch::autograd::Function<DifferentiableAttention> {
 public:
  static Variable forward(AutogradContext* context, const Variable& query, const Variable& key,
                          const Variable& value, const std::optional<torch::Tensor>& mask,
                          double scale, bool is_causal, double dropout_p) {
    const AttentionArguments arguments =
        seeded({query, key, value, mask, scale, is_causal, dropout_p});
    context->saved_data["scale"] = scale;
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["dropout_p"] = dropout_p;
    const at::AutoDispatchBelowADInplaceOrView guard;
    // Whatever runs checks the arguments.
    const bool fused = key.dim() == 4 && cpu::ineligible_because(query, key.size(2), scale).empty();
    const AttentionResult result =
        fused ? call_attention_with_sums(arguments)
              : AttentionResult{without_sums(arguments), torch::Tensor(), torch::Tensor()};
    context->save_for_backward({query, key, value, arguments.mask,
                                fused ? result.output : torch::Tensor(), result.row_maxima,
                                result.row_sums, arguments.seed});
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const AttentionArguments arguments = {saved[0],
                                          saved[1],
                                          saved[2],
                                          saved[3],
                                          context->saved_data["scale"].toDouble(),
                                          context->saved_data["is_causal"].toBool(),
                                          context->saved_data["dropout_p"].toDouble(),
                                          saved[7]};
    std::array<bool, 3> wanted;
    for (std::size_t i = 0; i < 3; ++i) wanted[i] = context->needs_input_grad(i);
    const AttentionResult result = {saved[4], saved[5], saved[6]};
    const bool differentiated =
        torch::GradMode::is_enabled() || needs_formula(arguments) || has_tangent(gradients[0]);
    const bool fused = result.output.defined() && !differentiated;
    const auto found = fused ? call_attention_backward(arguments, result, gradients[0], wanted)
                             : reference::attention_gradients(arguments, gradients[0], wanted);
    return {found[0], found[1], found[2], {}, {}, {}, {}};
  }

 private:
  static torch::Tensor without_sums(const AttentionArguments& arguments) {
    if (arguments.dropout_p == 0) return call_attention(arguments);
    // The op would draw another seed.
    check_attention(arguments);
    return reference::attention(arguments);
  }
};

torch::Tensor attention_autograd(const torch::Tensor& query, const torch::Tensor& key,
                                 const torch::Tensor& value,
                                 const std::optional<torch::Tensor>& mask, double scale,
                                 bool is_causal, double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  if (needs_formula(arguments)) {
    check_attention(arguments);
    return reference::attention(seeded(arguments));
  }
  return records_gradients(arguments)
             ? DifferentiableAttention::apply(query, key, value, mask, scale, is_causal, dropout_p)
             : call_below_autograd(arguments);
}

SELF_ATTENTION_KERNELS(Autograd, library) { library.impl("attention", attention_autograd); }

}  // namespace

bool under_function_transform() {
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return included.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

bool needs_formula(const AttentionArguments& arguments) {
  return under_function_transform() || has_tangent(arguments.query) || has_tangent(arguments.key) ||
         has_tangent(arguments.value);
}

}  // namespace self_attention
