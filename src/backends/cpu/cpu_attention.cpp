#include "backends/cpu/cpu_attention.h"

#include <self_attention/ops/cpu_target.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>

#include "backends/cpu/kernel/schedule.h"
#include "backends/cpu/parallel_tasks.h"
#include "modules/input_checks.h"

namespace self_attention {
namespace {

const cpu::Kernel* find_kernel(const std::string& name, std::string_view who) {
  std::string names;
  for (const cpu::Kernel* kernel : cpu::kernels()) {
    if (kernel->name == name) return kernel;
    names += (names.empty() ? "" : ", ") + std::string(kernel->name);
  }
  TORCH_CHECK_VALUE(false, message(who, "name", "one of " + names, name));
}

const cpu::Kernel* first_kernel() {
  const char* name = std::getenv("SELF_ATTENTION_CPU_TARGET");
  return name == nullptr ? cpu::kernels().front() : find_kernel(name, "SELF_ATTENTION_CPU_TARGET");
}

std::atomic<const cpu::Kernel*>& chosen_kernel() {
  static std::atomic<const cpu::Kernel*> kernel = first_kernel();
  return kernel;
}

}  // namespace

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const cpu::Kernel* kernel : cpu::kernels()) names.emplace_back(kernel->name);
  return names;
}

std::string cpu_target() { return std::string(chosen_kernel().load()->name); }

void set_cpu_target(const std::string& name) {
  chosen_kernel() = find_kernel(name, "set_cpu_target");
}

namespace cpu {
namespace {

std::optional<ElementKind> element_kind(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return ElementKind::kFloat32;
    case torch::kBFloat16:
      return ElementKind::kBFloat16;
    case torch::kFloat16:
      return ElementKind::kFloat16;
    default:
      return std::nullopt;
  }
}

Strides strides_of(const torch::Tensor& tensor) {
  const auto strides = tensor.strides();
  return {strides[0], strides[1], strides[2], strides[3]};
}

ConstView view_of(const torch::Tensor& tensor) {
  return {tensor.const_data_ptr(), strides_of(tensor)};
}

/// Whether zero is recognised by the element's bits: all of them zero, but for the sign.
bool has_plain_zero(torch::ScalarType type) {
  return type == torch::kBool || c10::isIntegralType(type, /*includeBool=*/false) ||
         type == torch::kFloat64 || type == torch::kFloat32 || type == torch::kBFloat16 ||
         type == torch::kFloat16;
}

MaskView view_of_mask(const torch::Tensor& mask) {
  return {mask.const_data_ptr(), strides_of(mask), static_cast<std::uint8_t>(mask.element_size()),
          mask.is_floating_point()};
}

}  // namespace

std::string ineligible_because(const torch::Tensor& query, std::int64_t key_length, double scale) {
  // Kept keys are listed by numbers of 32 bits.
  constexpr std::int64_t kMostKeys = std::numeric_limits<std::uint32_t>::max();
  // Below this a masked score is so near the others that it has a weight.
  constexpr double kLowestMasked = 1e4;
  if (!query.is_cpu()) return c10::str("it runs on the CPU, the tensors are on ", query.device());
  if (!element_kind(query.scalar_type())) {
    return "it takes float32, bfloat16 and float16, the tensors are " +
           dtype_text(query.scalar_type());
  }
  if (1e20 * scale < kLowestMasked) {
    return c10::str("with scale ", scale, " masked scores do not vanish");
  }
  if (static_cast<double>(static_cast<float>(scale)) > std::numeric_limits<float>::max() / 1e21) {
    return c10::str("with scale ", scale, " masked scores exceed float32");
  }
  if (key_length > kMostKeys) return "it takes at most 2^32 keys";
  return "";
}

torch::Tensor attention(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  const torch::Tensor& key = arguments.key;
  const torch::Tensor& value = arguments.value;
  const torch::Tensor output = empty_result(arguments);
  if (output.numel() == 0) return output;
  torch::Tensor mask = arguments.mask;
  if (mask.defined()) {
    if (!has_plain_zero(mask.scalar_type())) mask = mask.ne(0);
    mask = mask.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
  }
  AttentionProblem problem;
  problem.query = view_of(query);
  problem.key = view_of(key);
  problem.value = view_of(value);
  problem.output = output.mutable_data_ptr();
  problem.output_strides = strides_of(output);
  if (mask.defined() && mask.numel() > 0) problem.mask = view_of_mask(mask);
  problem.kind = *element_kind(key.scalar_type());
  problem.float32_rows = query.scalar_type() == torch::kFloat32;
  problem.batch = static_cast<std::size_t>(query.size(0));
  problem.heads = static_cast<std::size_t>(query.size(1));
  problem.query_length = static_cast<std::size_t>(query.size(2));
  problem.key_length = static_cast<std::size_t>(key.size(2));
  problem.head_dim = static_cast<std::size_t>(query.size(3));
  problem.value_dim = static_cast<std::size_t>(value.size(3));
  problem.scale = static_cast<float>(arguments.scale);
  problem.causal = arguments.is_causal;
  Schedule schedule(problem, *chosen_kernel().load(), available_threads());
  run_tasks(schedule);
  return output;
}

std::string kernel_name() { return "cpu/" + cpu_target(); }

}  // namespace cpu
}  // namespace self_attention
