#include "tools/export/triton_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "io/text.h"
#include "io/torchscript_fused.h"

namespace self_attention::exporting {
namespace {

using Dims = std::vector<std::int64_t>;

constexpr std::int64_t kVariable = -1;
/// TorchScript compiles in the first two calls.
constexpr int kWarmUpCalls = 3;
constexpr std::int64_t kWarmUpLength = 16;

/// Triton's name of a dtype; empty for those that its PyTorch backend lacks.
std::string_view triton_type(io::ElementType type) {
  switch (type) {
    case io::ElementType::kFloat16:
      return "TYPE_FP16";
    case io::ElementType::kFloat32:
      return "TYPE_FP32";
    case io::ElementType::kFloat64:
      return "TYPE_FP64";
    default:
      return "";
  }
}

/// Sizes of one row of a batch, with the batch in front where the server does not add it.
Dims with_batch(const TritonModel& model, std::int64_t batch, Dims dims) {
  if (model.max_batch_size == 0) dims.insert(dims.begin(), batch);
  return dims;
}

std::string dims_text(const Dims& dims) { return fmt::format("[ {} ]", fmt::join(dims, ", ")); }

/// A length whose elements divide into heads, which InferredLengthAttention reshapes them to.
std::int64_t warm_up_length(const io::ScriptForm& form) {
  const std::int64_t row = form.heads * form.head_dim();
  const std::int64_t step = row / std::gcd(row, form.embed);
  return step * std::max<std::int64_t>(1, kWarmUpLength / step);
}

struct Input {
  std::string name;
  std::string_view type;
  Dims dims;     ///< of a request
  Dims warm_up;  ///< of a warm-up call
};

std::vector<Input> inputs_of(const TritonModel& model) {
  std::vector<Input> inputs;
  for (const std::string& name : io::script_arguments(model.form)) {
    if (name == "mask") {
      inputs.push_back({name, "TYPE_BOOL",
                        with_batch(model, kVariable, {kVariable, kVariable, kVariable}),
                        with_batch(model, 1, {1, 1, 1})});
    } else {
      inputs.push_back({name, triton_type(model.dtype),
                        with_batch(model, kVariable, {kVariable, model.form.embed}),
                        with_batch(model, 1, {warm_up_length(model.form), model.form.embed})});
    }
  }
  return inputs;
}

}  // namespace

void check_servable(const TritonModel& model) {
  if (model.form.mask == ScriptMask::kOptional) {
    throw std::runtime_error(
        "--triton: expected --mask required or none, got optional: the PyTorch backend takes "
        "arguments of type Tensor alone; export two models, one with a mask and one without");
  }
  if (triton_type(model.dtype).empty()) {
    throw std::runtime_error(fmt::format(
        "--triton: expected weights in float16, float32 or float64, got {}: the PyTorch backend "
        "has no other; convert the weights",
        io::element_name(model.dtype)));
  }
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  if (model.name.empty() || model.name.front() == '.' ||
      model.name.find_first_not_of(kAllowed) != std::string::npos) {
    throw std::runtime_error(
        fmt::format("--triton-name: expected letters, digits, '_', '-' and '.', and none of the "
                    "last in front, got {}",
                    io::in_quotes(model.name)));
  }
  if (model.max_batch_size < 0) {
    throw std::runtime_error(
        fmt::format("--max-batch-size: expected a number from 0 on, got {}", model.max_batch_size));
  }
}

std::string triton_config(const TritonModel& model) {
  const std::vector<Input> inputs = inputs_of(model);
  std::vector<std::string> entries;
  std::vector<std::string> warm_up;
  for (const Input& input : inputs) {
    entries.push_back(fmt::format("  {{ name: \"{}\" data_type: {} dims: {} }}", input.name,
                                  input.type, dims_text(input.dims)));
    warm_up.push_back(fmt::format(
        "    inputs {{ key: \"{}\" value: {{ data_type: {} dims: {} zero_data: true }} }}",
        input.name, input.type, dims_text(input.warm_up)));
  }
  const Dims output = with_batch(model, kVariable, {kVariable, model.form.embed});
  const bool needs_library = model.form.ops == ScriptOps::kFused;
  return fmt::format(
      "{}"
      "name: \"{}\"\n"
      "platform: \"pytorch_libtorch\"\n"
      "backend: \"pytorch\"\n"
      "max_batch_size: {}\n"
      "input [\n{}\n]\n"
      "output [\n  {{ name: \"OUTPUT__0\" data_type: {} dims: {} }}\n]\n"
      "{}"
      "model_warmup [\n  {{\n    name: \"first_calls\"\n    batch_size: 1\n    count: {}\n{}\n"
      "  }}\n]\n",
      needs_library ? fmt::format("# needs {}\n", io::kFusedNeeds) : "", model.name,
      model.max_batch_size, fmt::join(entries, ",\n"), triton_type(model.dtype), dims_text(output),
      model.max_batch_size > 0 ? "dynamic_batching { }\n" : "", kWarmUpCalls,
      fmt::join(warm_up, "\n"));
}

}  // namespace self_attention::exporting
