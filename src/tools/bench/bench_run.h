#pragma once

#include <functional>
#include <string>

#include "tools/bench/bench_cases.h"

namespace self_attention::bench {

/// A case's two calls, on the same tensors, with the gradients where it trains. Results are thrown
/// away.
struct BenchCalls {
  std::function<void()> attention;  ///< self_attention::attention
  std::function<void()> torch;      ///< at::scaled_dot_product_attention
  std::string kernel;               ///< what attention runs, as attention_kernel() names it
};

/// Makes the tensors of a case; the calls hold them.
BenchCalls make_calls(const BenchCase& bench_case);

/// Makes both calls use that many threads.
void use_threads(int threads);

/// Makes attention use that instruction set, one of cpu_targets(). Throws std::runtime_error, which
/// names those that there are, for another.
void use_target(const std::string& name);

/// LibTorch's version and the instruction set of its kernels.
std::string torch_description();

}  // namespace self_attention::bench
