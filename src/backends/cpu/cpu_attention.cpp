#include "backends/cpu/cpu_attention.h"

#include <self_attention/ops/cpu_target.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>

#include "backends/cpu/kernel/schedule.h"
#include "backends/cpu/parallel_tasks.h"
#include "ops/input_checks.h"

namespace self_attention {
namespace {

const cpu::Kernel* find_kernel(const std::string& name, std::string_view who) {
  std::string names;
  for (const cpu::Kernel* kernel : cpu::kernels()) {
    if (kernel->name == name) return kernel;
    names += (names.empty() ? "" : ", ") + std::string(kernel->name);
  }
  C10_THROW_ERROR(ValueError, message(who, "name", "one of " + names, name));
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

/// Where heads and rows are among the axes of query, key, value and result.
struct Axes {
  std::size_t heads;
  std::size_t rows;
};
constexpr Axes kHeadsFirst = {1, 2};
constexpr Axes kRowsFirst = {2, 1};

Strides strides_of(const torch::Tensor& tensor, Axes axes = kHeadsFirst) {
  const auto strides = tensor.strides();
  return {strides[0], strides[axes.heads], strides[axes.rows], strides[3]};
}

ConstView view_of(const torch::Tensor& tensor, Axes axes = kHeadsFirst) {
  return {tensor.const_data_ptr(), strides_of(tensor, axes)};
}

/// Whether zero is recognised by the element's bits: all of them zero, but for the sign.
bool has_plain_zero(torch::ScalarType type) {
  return type == torch::kBool || c10::isIntegralType(type, /*includeBool=*/false) ||
         type == torch::kFloat64 || type == torch::kFloat32 || type == torch::kBFloat16 ||
         type == torch::kFloat16;
}

/// Repeated along the axes in which it broadcasts.
MaskView view_of_mask(const torch::Tensor& mask) {
  MaskView view = {mask.const_data_ptr(),
                   {},
                   static_cast<std::uint8_t>(mask.element_size()),
                   mask.is_floating_point()};
  const auto missing = view.strides.size() - static_cast<std::size_t>(mask.dim());
  for (std::size_t axis = 0; axis < mask.sizes().size(); ++axis) {
    view.strides[missing + axis] = mask.sizes()[axis] == 1 ? 0 : mask.strides()[axis];
  }
  return view;
}

/// A call's tensors as the kernel sees them, while this lives.
class Call {
 public:
  explicit Call(const AttentionArguments& arguments, Axes axes = kHeadsFirst)
      : mask_(arguments.mask) {
    const auto& [query, key, value, mask, scale, is_causal, dropout_p, seed] = arguments;
    if (mask_.defined() && !has_plain_zero(mask_.scalar_type())) mask_ = mask_.ne(0);
    problem_.query = view_of(query, axes);
    problem_.key = view_of(key, axes);
    problem_.value = view_of(value, axes);
    if (mask_.defined() && mask_.numel() > 0) problem_.mask = view_of_mask(mask_);
    problem_.kind = *element_kind(key.scalar_type());
    problem_.float32_rows = query.scalar_type() == torch::kFloat32;
    const auto size = [](const torch::Tensor& tensor, std::size_t axis) {
      return static_cast<std::size_t>(tensor.sizes()[axis]);
    };
    problem_.batch = size(query, 0);
    problem_.heads = size(query, axes.heads);
    problem_.query_length = size(query, axes.rows);
    problem_.key_length = size(key, axes.rows);
    problem_.head_dim = size(query, 3);
    problem_.value_dim = size(value, 3);
    problem_.scale = static_cast<float>(scale);
    problem_.causal = is_causal;
    if (dropout_p > 0) {
      problem_.dropout =
          make_dropout(dropout_p, static_cast<std::uint64_t>(seed.item<std::int64_t>()));
    }
  }

  const AttentionProblem& problem() const { return problem_; }

 private:
  torch::Tensor mask_;
  AttentionProblem problem_;
};

void run_attention(AttentionProblem problem, const torch::Tensor& output, Axes axes = kHeadsFirst) {
  problem.output = output.mutable_data_ptr();
  problem.output_strides = strides_of(output, axes);
  Schedule schedule(problem, *chosen_kernel().load(), available_threads());
  run_tasks(schedule);
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
  const torch::Tensor output = empty_result(arguments);
  if (output.numel() > 0) run_attention(Call(arguments).problem(), output);
  return output;
}

torch::Tensor attention_of_rows(const AttentionArguments& arguments) {
  const torch::Tensor& query = arguments.query;
  const torch::Tensor output = torch::empty(
      {query.size(0), query.size(1), query.size(2), arguments.value.size(3)}, query.options());
  if (output.numel() > 0) run_attention(Call(arguments, kRowsFirst).problem(), output, kRowsFirst);
  return output;
}

AttentionResult attention_with_sums(const AttentionArguments& arguments) {
  const AttentionResult result = empty_attention_result(arguments);
  if (result.output.numel() == 0) return result;
  const Call call(arguments);
  AttentionProblem problem = call.problem();
  problem.row_maxima = result.row_maxima.mutable_data_ptr<float>();
  problem.row_sums = result.row_sums.mutable_data_ptr<float>();
  run_attention(problem, result.output);
  return result;
}

std::array<torch::Tensor, 3> attention_gradients(const AttentionArguments& arguments,
                                                 const AttentionResult& result,
                                                 const torch::Tensor& grad_output,
                                                 std::array<bool, 3> wanted) {
  const bool empty = result.output.numel() == 0 || arguments.key.size(2) == 0;
  std::array<torch::Tensor, 3> gradients;
  const std::array<const torch::Tensor*, 3> inputs = {&arguments.query, &arguments.key,
                                                      &arguments.value};
  std::array<OutputView, 3> views;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!wanted[i]) continue;
    gradients[i] = empty_gradient(*inputs[i]);
    if (empty) gradients[i].zero_();
    views[i] = {gradients[i].mutable_data_ptr(), strides_of(gradients[i])};
  }
  if (empty) return gradients;
  const Call call(arguments);
  GradientProblem problem;
  problem.call = call.problem();
  // Read only.
  problem.call.row_maxima = const_cast<float*>(result.row_maxima.const_data_ptr<float>());
  problem.call.row_sums = const_cast<float*>(result.row_sums.const_data_ptr<float>());
  problem.output = view_of(result.output);
  problem.grad_output = view_of(grad_output);
  problem.grad_query = views[0];
  problem.grad_key = views[1];
  problem.grad_value = views[2];
  GradientSchedule schedule(problem, *chosen_kernel().load());
  run_tasks(schedule);
  return gradients;
}

std::string kernel_name() { return "cpu/" + cpu_target(); }

}  // namespace cpu
}  // namespace self_attention
