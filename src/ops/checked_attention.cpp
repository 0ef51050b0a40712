// The op `self_attention::_checked_attention`: attention() for callers inside the library, on
// arguments that are checked, with axes as projections give them, (N, L, H, d), and with key and
// value of 16 bits beside a float32 query.

#include "backends/cpu/cpu_attention.h"
#include "ops/attention_op.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// By the public op, which every key knows.
Tensor widened(const Tensor& query, const Tensor& key, const Tensor& value,
               const OptionalTensor& mask, double scale, bool is_causal, double dropout_p) {
  const auto by_head = [&](const Tensor& x) { return x.to(query.scalar_type()).transpose(1, 2); };
  return call_attention(
             {by_head(query), by_head(key), by_head(value), mask, scale, is_causal, dropout_p})
      .transpose(1, 2);
}

Tensor checked_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                   const OptionalTensor& mask, double scale, bool is_causal, double dropout_p) {
  return cpu::attention_of_rows(seeded({query, key, value, mask, scale, is_causal, dropout_p}));
}

Tensor checked_autograd(const Tensor& query, const Tensor& key, const Tensor& value,
                        const OptionalTensor& mask, double scale, bool is_causal,
                        double dropout_p) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p};
  if (records_gradients(arguments) || needs_formula(arguments)) {
    return widened(query, key, value, mask, scale, is_causal, dropout_p);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_checked_attention(arguments);
}

SELF_ATTENTION_OPS(library) {
  library.def(
      "_checked_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, bool "
      "is_causal, float dropout_p) -> Tensor",
      {at::Tag::nondeterministic_seeded});
}

SELF_ATTENTION_KERNELS(CPU, library) { library.impl("_checked_attention", checked_cpu); }

SELF_ATTENTION_KERNELS(Autograd, library) { library.impl("_checked_attention", checked_autograd); }

SELF_ATTENTION_KERNELS(Meta, library) { library.impl("_checked_attention", widened); }

SELF_ATTENTION_KERNELS(FuncTorchBatched, library) { library.impl("_checked_attention", widened); }

}  // namespace

Tensor call_checked_attention(const AttentionArguments& arguments) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("self_attention::_checked_attention", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&,
                                           const OptionalTensor&, double, bool, double)>();
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  return op.call(query, key, value, arguments.optional_mask(), scale, is_causal, dropout_p);
}

}  // namespace self_attention
