#pragma once

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/types.h>

#include <vector>

#include "support/tensor_matchers.h"

namespace self_attention::testing {

/// Values, keys, query and a mask that all differ, for E = 8 and two heads.
struct Call {
  explicit Call(torch::ScalarType dtype = torch::kFloat32, int64_t queries = 3, int64_t keys = 5) {
    const auto random = [&](int64_t length) {
      return torch::randn({2, length, 8}).to(dtype).requires_grad_();
    };
    values = random(keys);
    this->keys = random(keys);
    query = random(queries);
    mask = torch::rand({2, 1, 1, keys}) > 0.4;
  }

  std::vector<torch::Tensor> inputs(bool masked) const {
    return {values, keys, query, masked ? mask : torch::Tensor()};
  }

  torch::Tensor values, keys, query, mask;
};

/// Output, then the gradients of `leaves`.
inline std::vector<torch::Tensor> results(const torch::Tensor& output,
                                          const std::vector<torch::Tensor>& leaves) {
  const auto cotangent =
      torch::linspace(-1, 1, output.numel()).view(output.sizes()).to(output.scalar_type());
  std::vector<torch::Tensor> tensors =
      torch::autograd::grad({output}, leaves, {cotangent}, std::nullopt, false, true);
  tensors.insert(tensors.begin(), output);
  return tensors;
}

inline void expect_same(const std::vector<torch::Tensor>& actual,
                        const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bit_equal(actual[i], expected[i])) << "tensor " << i;
  }
}

inline std::vector<torch::Tensor> parameters_of(const torch::jit::Module& module) {
  std::vector<torch::Tensor> tensors;
  for (const auto& parameter : module.named_parameters()) tensors.push_back(parameter.value);
  return tensors;
}

}  // namespace self_attention::testing
