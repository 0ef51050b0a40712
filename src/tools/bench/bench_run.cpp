#include "tools/bench/bench_run.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <self_attention/ops/attention.h>
#include <self_attention/ops/cpu_target.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

namespace self_attention::bench {
namespace {

torch::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return torch::kFloat16;
    case Dtype::kBFloat16:
      return torch::kBFloat16;
    case Dtype::kFloat32:
      break;
  }
  return torch::kFloat32;
}

struct Inputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor mask;  ///< undefined for none
  double scale;
  bool causal;
  torch::Tensor grad_output;  ///< where the case trains
};

Inputs make_inputs(const BenchCase& bench_case) {
  const auto draw = [&](std::int64_t length) {
    return torch::randn({bench_case.batch, length, bench_case.heads, bench_case.head_dim})
        .to(scalar_type(bench_case.dtype))
        .transpose(1, 2)
        .requires_grad_(bench_case.trains);
  };
  Inputs inputs{draw(bench_case.query_length),
                draw(bench_case.key_length),
                draw(bench_case.key_length),
                {},
                1 / std::sqrt(static_cast<double>(bench_case.head_dim)),
                bench_case.causal,
                {}};
  if (bench_case.trains) inputs.grad_output = draw(bench_case.query_length).detach();
  if (bench_case.padding) {
    inputs.mask = torch::arange(bench_case.key_length)
                      .lt(kept_keys(bench_case))
                      .view({1, 1, 1, -1})
                      .repeat({bench_case.batch, 1, 1, 1});
  }
  return inputs;
}

/// Calls, and where the case trains takes the gradients.
template <typename Call>
void run(const Inputs& inputs, const Call& call) {
  const bool trains = inputs.grad_output.defined();
  const c10::InferenceMode mode(!trains);
  const torch::Tensor output = call();
  if (!trains) return;
  torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {inputs.grad_output});
}

}  // namespace

BenchCalls make_calls(const BenchCase& bench_case) {
  const c10::InferenceMode mode(!bench_case.trains);
  const Inputs inputs = make_inputs(bench_case);
  const AttentionOptions options = AttentionOptions(inputs.scale).is_causal(inputs.causal);
  const std::optional<torch::Tensor> mask =
      inputs.mask.defined() ? std::optional(inputs.mask) : std::nullopt;
  const auto ours = [inputs, options] {
    run(inputs,
        [&] { return attention(inputs.query, inputs.key, inputs.value, inputs.mask, options); });
  };
  const auto torchs = [inputs, mask] {
    run(inputs, [&] {
      return at::scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, mask,
                                              /*dropout_p=*/0.0, inputs.causal, inputs.scale);
    });
  };
  return {ours, torchs,
          attention_kernel(inputs.query, inputs.key, inputs.value, inputs.mask, options).name};
}

void use_threads(int threads) { at::set_num_threads(threads); }

void use_target(const std::string& name) {
  const std::vector<std::string> targets = cpu_targets();
  if (std::find(targets.begin(), targets.end(), name) == targets.end()) {
    throw std::runtime_error(
        fmt::format("--target {}: this machine and build have {}", name, fmt::join(targets, ", ")));
  }
  set_cpu_target(name);
}

std::string torch_description() {
  return std::string(TORCH_VERSION) + ", " + at::get_cpu_capability();
}

}  // namespace self_attention::bench
