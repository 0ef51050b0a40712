#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/types.h>

#include <stdexcept>
#include <tuple>

namespace self_attention::testing {

/// The derivative of `function` at `x` along `direction`, by forward mode.
template <typename Function>
torch::Tensor forward_derivative(Function&& function, const torch::Tensor& x,
                                 const torch::Tensor& direction) {
  struct Level {
    ~Level() { torch::autograd::ForwardADLevel::release_idx(index); }
    uint64_t index = torch::autograd::ForwardADLevel::get_next_idx();
  };
  const Level level;
  const auto index = static_cast<int64_t>(level.index);
  const torch::Tensor result = function(at::_make_dual(x, direction, index));
  return std::get<1>(at::_unpack_dual(result, index)).clone();
}

/// `function` of each of the samples along the first axis, by vmap.
template <typename Function>
torch::Tensor mapped(Function&& function, const torch::Tensor& samples) {
  namespace functorch = at::functorch;
  struct Layer {
    explicit Layer(int64_t count)
        : level(functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap,
                                                   c10::SymInt(count),
                                                   functorch::RandomnessType::Error)) {}
    ~Layer() { functorch::popDynamicLayerAndDeleteMetadata(); }
    int64_t level;
  };
  const Layer layer(samples.size(0));
  const torch::Tensor result = function(functorch::makeBatched(samples, 0, layer.level));
  const auto* batched = functorch::maybeGetBatchedImpl(result);
  if (batched == nullptr) throw std::runtime_error("the result is not mapped");
  return batched->value().movedim(batched->bdim(), 0);
}

}  // namespace self_attention::testing
