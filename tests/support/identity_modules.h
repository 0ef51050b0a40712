#pragma once

#include <self_attention/self_attention.h>
#include <torch/utils.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace self_attention::testing {

/// Sets every weight of `module` to the identity and every bias to zero, so that right values can
/// be worked out by hand. Every weight must be square.
template <typename Module>
Module with_identity_weights(Module module) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : module->named_parameters()) {
    if (parameter.value().dim() == 2) {
      parameter.value().copy_(torch::eye(parameter.value().size(0)));
    } else {
      parameter.value().zero_();
    }
  }
  return module;
}

inline SharedProjectionAttention identity_attention(int64_t embed, int64_t heads) {
  return with_identity_weights(SharedProjectionAttention(embed, heads));
}

/// (1, L, E) from rows; E is that of the first row.
inline torch::Tensor rows(const std::vector<std::vector<double>>& values,
                          torch::ScalarType dtype = torch::kFloat32) {
  std::vector<double> flat;
  for (const auto& row : values) {
    flat.insert(flat.end(), row.begin(), row.end());
  }
  const auto length = static_cast<int64_t>(values.size());
  return torch::tensor(flat, torch::kFloat64).view({1, length, -1}).to(dtype);
}

/// (1, 1, 1, K) from the entries of one row.
inline torch::Tensor key_mask(const std::vector<double>& entries,
                              torch::ScalarType dtype = torch::kFloat64) {
  return torch::tensor(entries, torch::kFloat64).view({1, 1, 1, -1}).to(dtype);
}

/// R01's keys and query with the values that R08 to R11 use.
struct TwoKeys {
  torch::Tensor values = rows({{1, 2, 3, 4}, {5, 6, 7, 8}});
  torch::Tensor keys = rows({{2, 0, 2, 0}, {0, 0, 0, 0}});
  torch::Tensor query = rows({{2, 0, 2, 0}});
};

}  // namespace self_attention::testing
