// The ops `self_attention::_attention_with_sums` and `self_attention::attention_backward`: the
// fused kernel and its gradients, which the Autograd key joins.

#include <torch/utils.h>

#include "backends/cpu/cpu_attention.h"
#include "ops/attention_op.h"
#include "ops/input_checks.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

constexpr std::string_view kWho = "attention_backward";

void check_eligible(const AttentionArguments& arguments, std::string_view who) {
  check_attention(arguments);
  const std::string reason =
      cpu::ineligible_because(arguments.query, arguments.key.size(2), arguments.scale);
  TORCH_CHECK_VALUE(reason.empty(),
                    message(who, "query", "what the fused kernel can run", "another: " + reason));
  const Tensor& seed = arguments.seed;
  TORCH_CHECK_VALUE(
      arguments.dropout_p == 0 || (seed.defined() && seed.dim() == 0 && seed.is_cpu() &&
                                   seed.scalar_type() == torch::kInt64),
      message(who, "seed", "an int64 without dimensions, on the CPU, since dropout_p is above 0",
              seed.defined() ? dtype_text(seed.scalar_type()) + " of shape " +
                                   shape_text(seed.sizes()) + " on " + seed.device().str()
                             : "none"));
}

void check_like(const NamedTensor& argument, const Tensor& like, torch::IntArrayRef shape,
                torch::ScalarType type) {
  const Tensor& tensor = argument.tensor;
  check_dense(kWho, argument);
  TORCH_CHECK_VALUE(
      tensor.sizes() == shape,
      message(kWho, argument.name, "shape " + shape_text(shape), shape_text(tensor.sizes())));
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, message(kWho, argument.name, dtype_text(type),
                                                         dtype_text(tensor.scalar_type())));
  TORCH_CHECK_VALUE(tensor.device() == like.device(),
                    message(kWho, argument.name, "the device of query, " + like.device().str(),
                            tensor.device().str()));
}

void check_result(const AttentionArguments& arguments, const AttentionResult& result,
                  const Tensor& grad_output) {
  const Tensor& query = arguments.query;
  const std::vector<int64_t> shape = {query.size(0), query.size(1), query.size(2),
                                      arguments.value.size(3)};
  check_like({"grad_output", grad_output}, query, shape, query.scalar_type());
  check_like({"output", result.output}, query, shape, query.scalar_type());
  const auto rows = query.sizes().slice(0, 3);
  check_like({"row_maxima", result.row_maxima}, query, rows, torch::kFloat32);
  check_like({"row_sums", result.row_sums}, query, rows, torch::kFloat32);
}

ThreeTensors with_sums_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                           const OptionalTensor& mask, double scale, bool is_causal,
                           double dropout_p, const OptionalTensor& seed) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p, seed};
  check_eligible(arguments, "attention");
  const AttentionResult result = cpu::attention_with_sums(arguments);
  return {result.output, result.row_maxima, result.row_sums};
}

ThreeTensors with_sums_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                            const OptionalTensor& mask, double scale, bool is_causal,
                            double dropout_p, const OptionalTensor& seed) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p, seed};
  check_attention(arguments);
  const AttentionResult result = empty_attention_result(arguments);
  return {result.output, result.row_maxima, result.row_sums};
}

ThreeTensors backward_cpu(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                          const Tensor& value, const OptionalTensor& mask, const Tensor& output,
                          const Tensor& row_maxima, const Tensor& row_sums, double scale,
                          bool is_causal, std::array<bool, 3> output_mask, double dropout_p,
                          const OptionalTensor& seed) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p, seed};
  check_eligible(arguments, kWho);
  const AttentionResult result = {output, row_maxima, row_sums};
  check_result(arguments, result, grad_output);
  const auto gradients =
      cpu::attention_gradients(arguments, {output, row_maxima.contiguous(), row_sums.contiguous()},
                               grad_output, output_mask);
  return {gradients[0], gradients[1], gradients[2]};
}

ThreeTensors backward_meta(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                           const Tensor& value, const OptionalTensor& mask, const Tensor& output,
                           const Tensor& row_maxima, const Tensor& row_sums, double scale,
                           bool is_causal, std::array<bool, 3> output_mask, double dropout_p,
                           const OptionalTensor& seed) {
  const AttentionArguments arguments = {query, key, value, mask, scale, is_causal, dropout_p, seed};
  check_attention(arguments);
  check_result(arguments, {output, row_maxima, row_sums}, grad_output);
  const auto gradient = [&](const Tensor& input, bool wanted) {
    return wanted ? empty_gradient(input) : Tensor();
  };
  return {gradient(query, output_mask[0]), gradient(key, output_mask[1]),
          gradient(value, output_mask[2])};
}

SELF_ATTENTION_OPS(library) {
  library.def(
      "_attention_with_sums(Tensor query, Tensor key, Tensor value, Tensor? mask=None, *, float "
      "scale, bool is_causal=False, float dropout_p=0.0, Tensor? seed=None) -> (Tensor output, "
      "Tensor row_maxima, Tensor row_sums)");
  library.def(
      "attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor? "
      "mask, Tensor output, Tensor row_maxima, Tensor row_sums, *, float scale, bool "
      "is_causal=False, bool[3] output_mask=[True, True, True], float dropout_p=0.0, Tensor? "
      "seed=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)");
}

SELF_ATTENTION_KERNELS(CPU, library) {
  library.impl("_attention_with_sums", with_sums_cpu);
  library.impl("attention_backward", backward_cpu);
}

SELF_ATTENTION_KERNELS(Meta, library) {
  library.impl("_attention_with_sums", with_sums_meta);
  library.impl("attention_backward", backward_meta);
}

}  // namespace

AttentionResult call_attention_with_sums(const AttentionArguments& arguments) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("self_attention::_attention_with_sums", "")
                             .typed<decltype(with_sums_cpu)>();
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  auto [output, row_maxima, row_sums] = op.call(query, key, value, arguments.optional_mask(), scale,
                                                is_causal, dropout_p, arguments.optional_seed());
  return {std::move(output), std::move(row_maxima), std::move(row_sums)};
}

std::array<Tensor, 3> call_attention_backward(const AttentionArguments& arguments,
                                              const AttentionResult& result,
                                              const Tensor& grad_output,
                                              std::array<bool, 3> wanted) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("self_attention::attention_backward", "")
                             .typed<decltype(backward_cpu)>();
  const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
  auto [grad_query, grad_key, grad_value] = op.call(
      grad_output, query, key, value, arguments.optional_mask(), result.output, result.row_maxima,
      result.row_sums, scale, is_causal, wanted, dropout_p, arguments.optional_seed());
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value)};
}

}  // namespace self_attention
