#include "ops/input_checks.h"

#include <ATen/autocast_mode.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>

#include "io/element_type.h"
#include "io/text.h"
#include "io/torch_types.h"

namespace self_attention {
namespace {

bool is_supported_dtype(torch::ScalarType type) {
  return type == torch::kFloat64 || type == torch::kFloat32 || type == torch::kBFloat16 ||
         type == torch::kFloat16;
}

void check_floating(std::string_view who, const NamedTensor& argument) {
  const auto& [name, tensor] = argument;
  TORCH_CHECK_TYPE(is_supported_dtype(tensor.scalar_type()),
                   message(who, name, "float64, float32, bfloat16 or float16",
                           dtype_text(tensor.scalar_type())));
}

void check_device(std::string_view who, const NamedTensor& argument, torch::Device device,
                  std::string_view owner = "the parameters") {
  const auto& [name, tensor] = argument;
  TORCH_CHECK_VALUE(tensor.device() == device,
                    message(who, name, c10::str("device ", device, ", that of ", owner),
                            c10::str(tensor.device())));
}

bool dtype_fits(torch::ScalarType input, torch::ScalarType parameter, torch::Device device) {
  if (input == parameter) {
    return true;
  }
  // A device without autocast, such as meta, is not to be asked.
  return at::autocast::is_autocast_available(device.type()) &&
         at::autocast::is_autocast_enabled(device.type()) && input != torch::kFloat64 &&
         parameter != torch::kFloat64;
}

}  // namespace

std::string dtype_text(torch::ScalarType type) {
  const auto element = io::element_type(type);
  return element ? std::string(io::element_name(*element)) : c10::toString(type);
}

std::string shape_text(torch::IntArrayRef shape) {
  return io::shape_text({shape.data(), shape.size()});
}

std::string message(std::string_view who, std::string_view argument, std::string_view expected,
                    std::string_view got) {
  return c10::str("[", who, "] ", argument, ": expected ", expected, ", got ", got);
}

void check_dense(std::string_view who, const NamedTensor& argument) {
  const auto& [name, tensor] = argument;
  TORCH_CHECK_VALUE(tensor.defined(), message(who, name, "a tensor", "an undefined tensor"));
  TORCH_CHECK_VALUE(tensor.layout() == torch::kStrided && !tensor.is_nested(),
                    message(who, name, "a dense tensor",
                            tensor.is_nested() ? "a nested tensor" : c10::str(tensor.layout())));
}

int64_t check_bias(std::string_view who, const NamedTensor& bias) {
  check_dense(who, bias);
  TORCH_CHECK_VALUE(bias.tensor.dim() == 1,
                    message(who, bias.name, "shape (E,)", shape_text(bias.tensor.sizes())));
  return bias.tensor.size(0);
}

void check_parameters(std::string_view who, std::initializer_list<ExpectedParameter> parameters) {
  const torch::Tensor& first = parameters.begin()->tensor;
  for (const ExpectedParameter& parameter : parameters) {
    const NamedTensor argument{parameter.name, parameter.tensor};
    check_dense(who, argument);
    check_floating(who, argument);
    check_device(who, argument, first.device());
    TORCH_CHECK_TYPE(
        dtype_fits(parameter.tensor.scalar_type(), first.scalar_type(), first.device()),
        message(who, parameter.name,
                dtype_text(first.scalar_type()) + ", the dtype of the other parameters",
                dtype_text(parameter.tensor.scalar_type())));
    TORCH_CHECK_VALUE(parameter.tensor.sizes() == torch::IntArrayRef(parameter.shape),
                      message(who, parameter.name, "shape " + shape_text(parameter.shape),
                              shape_text(parameter.tensor.sizes())));
  }
}

void check_inputs(std::string_view who, NamedTensors inputs, const NamedTensor& like) {
  for (const NamedTensor& input : inputs) {
    check_dense(who, input);
    check_floating(who, input);
    check_device(who, input, like.tensor.device(), like.name);
    TORCH_CHECK_TYPE(
        dtype_fits(input.tensor.scalar_type(), like.tensor.scalar_type(), like.tensor.device()),
        message(who, input.name,
                c10::str(dtype_text(like.tensor.scalar_type()), ", the dtype of ", like.name),
                dtype_text(input.tensor.scalar_type())));
  }
}

void check_sequence_shapes(std::string_view who, NamedTensors values_keys_query,
                           int64_t embed_size) {
  const NamedTensor& values = values_keys_query.begin()[0];
  const NamedTensor& keys = values_keys_query.begin()[1];
  const NamedTensor& query = values_keys_query.begin()[2];
  TORCH_CHECK_VALUE(query.tensor.dim() == 3 && query.tensor.size(2) == embed_size,
                    message(who, query.name, c10::str("shape (N, Q, E=", embed_size, ")"),
                            shape_text(query.tensor.sizes())));
  const int64_t batch = query.tensor.size(0);
  for (const NamedTensor& argument : {values, keys}) {
    const torch::Tensor& tensor = argument.tensor;
    TORCH_CHECK_VALUE(
        tensor.dim() == 3 && tensor.size(0) == batch && tensor.size(2) == embed_size,
        message(who, argument.name, c10::str("shape (N=", batch, ", K, E=", embed_size, ")"),
                shape_text(tensor.sizes())));
  }
  check_key_lengths(who, values.tensor, values.tensor.size(1), keys.tensor.size(1));
}

void check_key_lengths(std::string_view who, const torch::Tensor& values, int64_t value_length,
                       int64_t key_length) {
  TORCH_CHECK_VALUE(value_length == key_length,
                    message(who, "values", c10::str("as many positions as keys, K=", key_length),
                            c10::str(value_length, " in ", shape_text(values.sizes()))));
}

void check_mask(std::string_view who, const torch::Tensor& mask, const ScoreShape& scores,
                torch::Device device) {
  if (!mask.defined()) {
    return;
  }
  const NamedTensor argument{"mask", mask};
  check_dense(who, argument);
  check_device(who, argument, device);
  const std::array<int64_t, 4> target = {scores.batch, scores.heads, scores.query_length,
                                         scores.key_length};
  const auto rank = static_cast<std::size_t>(mask.dim());
  bool fits = rank <= target.size();
  for (std::size_t axis = 0; fits && axis < rank; ++axis) {
    const int64_t size = mask.sizes()[axis];
    fits = size == 1 || size == target[target.size() - rank + axis];
  }
  TORCH_CHECK_VALUE(
      fits, message(who, "mask",
                    c10::str("a shape that broadcasts to (N=", scores.batch, ", H=", scores.heads,
                             ", Q=", scores.query_length, ", K=", scores.key_length, ")"),
                    c10::str(shape_text(mask.sizes()), "; a padding mask is (", scores.batch,
                             ", 1, 1, ", scores.key_length, ")")));
}

void check_recordable(std::string_view who, std::initializer_list<ExpectedParameter> parameters,
                      NamedTensors inputs) {
  if (!torch::GradMode::is_enabled()) {
    return;
  }
  const auto* inference =
      std::find_if(parameters.begin(), parameters.end(),
                   [](const ExpectedParameter& p) { return p.tensor.is_inference(); });
  if (inference == parameters.end()) {
    return;
  }
  const bool records =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const ExpectedParameter& p) { return p.tensor.requires_grad(); }) ||
      std::any_of(inputs.begin(), inputs.end(),
                  [](const NamedTensor& input) { return input.tensor.requires_grad(); });
  TORCH_CHECK_VALUE(
      !records,
      message(
          who, inference->name, "a parameter that gradients can be recorded for",
          "an inference tensor; run under torch::NoGradGuard or c10::InferenceMode, or make the "
          "parameters outside InferenceMode to train them"));
}

}  // namespace self_attention
