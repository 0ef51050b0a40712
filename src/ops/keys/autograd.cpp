#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include "backends/reference/attention.h"
#include "ops/attention_op.h"

namespace self_attention {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

torch::Tensor call_below_autograd(const AttentionArguments& arguments) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_attention(arguments);
}

/// The kernel forward; backward the reference formula again, by which it can be differentiated
/// once more. Only the inputs are kept in between.
class RecomputedAttention : public torch::autograd::Function<RecomputedAttention> {
 public:
  static Variable forward(AutogradContext* context, const Variable& query, const Variable& key,
                          const Variable& value, const std::optional<torch::Tensor>& mask,
                          double scale, bool is_causal) {
    const AttentionArguments arguments = {query, key,      value, mask.value_or(torch::Tensor()),
                                          scale, is_causal};
    context->save_for_backward({query, key, value, arguments.mask});
    context->saved_data["scale"] = scale;
    context->saved_data["is_causal"] = is_causal;
    return call_below_autograd(arguments);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const bool differentiable = torch::GradMode::is_enabled();
    variable_list inputs;
    variable_list wanted;
    for (std::size_t i = 0; i < 3; ++i) {
      const bool needed = context->needs_input_grad(i);
      inputs.push_back(differentiable ? saved[i] : saved[i].detach().requires_grad_(needed));
      if (needed) wanted.push_back(inputs[i]);
    }
    variable_list found;
    {
      const torch::AutoGradMode enable(true);
      const torch::Tensor output = reference::attention(
          {inputs[0], inputs[1], inputs[2], saved[3], context->saved_data["scale"].toDouble(),
           context->saved_data["is_causal"].toBool()});
      found = torch::autograd::grad({output}, wanted, {gradients[0]},
                                    /*retain_graph=*/differentiable,
                                    /*create_graph=*/differentiable);
    }
    variable_list result(6);
    for (std::size_t i = 0, next = 0; i < 3; ++i) {
      if (context->needs_input_grad(i)) result[i] = found[next++];
    }
    return result;
  }
};

torch::Tensor attention_autograd(const torch::Tensor& query, const torch::Tensor& key,
                                 const torch::Tensor& value,
                                 const std::optional<torch::Tensor>& mask, double scale,
                                 bool is_causal) {
  const AttentionArguments arguments = {query, key,      value, mask.value_or(torch::Tensor()),
                                        scale, is_causal};
  if (needs_formula(arguments)) {
    check_attention(arguments);
    return reference::attention(arguments);
  }
  return records_gradients(arguments)
             ? RecomputedAttention::apply(query, key, value, mask, scale, is_causal)
             : call_below_autograd(arguments);
}

TORCH_LIBRARY_IMPL(self_attention, Autograd, library) {
  library.impl("attention", attention_autograd);
}

}  // namespace

bool needs_formula(const AttentionArguments& arguments) {
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return included.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode) ||
         torch::autograd::isFwGradDefined(arguments.query) ||
         torch::autograd::isFwGradDefined(arguments.key) ||
         torch::autograd::isFwGradDefined(arguments.value);
}

}  // namespace self_attention
