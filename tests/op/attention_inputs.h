#pragma once

#include <self_attention/ops/attention.h>

#include <cstdint>

namespace self_attention::testing {

struct Inputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
};

inline Inputs make_inputs(int64_t queries, int64_t keys,
                          torch::ScalarType dtype = torch::kFloat32) {
  torch::manual_seed(5);
  const auto make = [&](int64_t length) {
    return torch::randn({2, length, 3, 8}, torch::kFloat64).to(dtype).transpose(1, 2);
  };
  return {make(queries), make(keys), make(keys)};
}

inline torch::Tensor run(const Inputs& inputs, const torch::Tensor& mask = {},
                         bool causal = false) {
  return attention(inputs.query, inputs.key, inputs.value, mask,
                   AttentionOptions(0.35).is_causal(causal));
}

}  // namespace self_attention::testing
