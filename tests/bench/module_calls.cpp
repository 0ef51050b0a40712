// A module and its archive as functions that Python's ctypes can call, so that one process can time
// calls from C++ and from Python in turns.

#include <self_attention/self_attention.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace self_attention {
namespace {

/// The two calls on one set of inputs.
struct Calls {
  std::function<torch::Tensor()> module;
  std::function<torch::Tensor()> archive;
};

template <typename Holder>
Calls make_calls(Holder module, const char* weights, const char* archive,
                 std::vector<torch::Tensor> inputs, const torch::Tensor& mask) {
  load_state_dict(*module, weights);
  auto script = torch::jit::load(archive);
  std::vector<torch::jit::IValue> values(inputs.begin(), inputs.end());
  if (mask.defined()) values.emplace_back(mask);
  inputs.resize(3);  // undefined ones for what is left out
  return {[=]() mutable { return module->forward(inputs[0], inputs[1], inputs[2], mask); },
          [=]() mutable { return script.forward(values).toTensor(); }};
}

}  // namespace
}  // namespace self_attention

extern "C" {

/// `sizes` are N, Q, K, E, H; `tensors` the float32 values, keys and query, which one may stand
/// for, and a bool mask (N, 1, 1, K) or null. They must outlive the result, which is never freed.
__attribute__((visibility("default"))) void* open_calls(const char* variant, const char* weights,
                                                        const char* archive, const int64_t* sizes,
                                                        void* const* tensors) {
  const auto [batch, queries, keys, embed, heads] =
      std::tuple(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]);
  std::vector<torch::Tensor> inputs;
  for (int i = 0; i < 3 && tensors[i] != nullptr; ++i) {
    inputs.push_back(torch::from_blob(tensors[i], {batch, i == 2 ? queries : keys, embed}));
  }
  const torch::Tensor mask = tensors[3] == nullptr
                                 ? torch::Tensor()
                                 : torch::from_blob(tensors[3], {batch, 1, 1, keys}, torch::kBool);
  using namespace self_attention;
  const std::string name = variant;
  const auto calls = [&](auto module) {
    return new Calls(make_calls(module, weights, archive, inputs, mask));
  };
  if (name == "full_projection") return calls(FullProjectionAttention(embed, heads));
  if (name == "inferred_length") return calls(InferredLengthAttention(embed, heads));
  return calls(SharedProjectionAttention(embed, heads));
}

/// Seconds of one of `count` calls after another, without gradients.
__attribute__((visibility("default"))) double time_calls(const void* calls, bool archive,
                                                         int count) {
  const torch::NoGradGuard no_grad;
  const auto& both = *static_cast<const self_attention::Calls*>(calls);
  const auto& call = archive ? both.archive : both.module;
  call();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
}
}
