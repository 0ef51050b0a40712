#include <self_attention/shapes.h>

#include "ops/input_checks.h"

namespace self_attention {

torch::Tensor mask_from_lengths(const torch::Tensor& lengths, int64_t key_length) {
  constexpr std::string_view kWho = "mask_from_lengths";
  check_dense(kWho, {"lengths", lengths});
  TORCH_CHECK_TYPE(c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
                   message(kWho, "lengths", "an integer dtype", dtype_text(lengths.scalar_type())));
  TORCH_CHECK_VALUE(lengths.dim() == 1,
                    message(kWho, "lengths", "shape (N,)", shape_text(lengths.sizes())));
  TORCH_CHECK_VALUE(key_length >= 0,
                    message(kWho, "key_length", "a number from 0 on", std::to_string(key_length)));
  const torch::Tensor wide = lengths.to(torch::kInt64);
  if (wide.numel() > 0) {
    const auto [low, high] = torch::aminmax(wide);
    for (const int64_t length : {low.item<int64_t>(), high.item<int64_t>()}) {
      TORCH_CHECK_VALUE(length >= 0 && length <= key_length,
                        message(kWho, "lengths", c10::str("numbers from 0 to ", key_length),
                                std::to_string(length)));
    }
  }
  const torch::Tensor positions = torch::arange(key_length, wide.options());
  return positions < wide.view({-1, 1, 1, 1});
}

torch::Tensor causal_mask(int64_t query_length, int64_t key_length, torch::Device device) {
  constexpr std::string_view kWho = "causal_mask";
  TORCH_CHECK_VALUE(query_length >= 0, message(kWho, "query_length", "a number from 0 on",
                                               std::to_string(query_length)));
  TORCH_CHECK_VALUE(key_length >= 0,
                    message(kWho, "key_length", "a number from 0 on", std::to_string(key_length)));
  const auto options = torch::TensorOptions().device(device).dtype(torch::kBool);
  return torch::ones({query_length, key_length}, options).tril();
}

torch::Tensor mask_from_key_padding_mask(const torch::Tensor& key_padding_mask) {
  constexpr std::string_view kWho = "mask_from_key_padding_mask";
  check_dense(kWho, {"key_padding_mask", key_padding_mask});
  TORCH_CHECK_TYPE(key_padding_mask.scalar_type() == torch::kBool,
                   message(kWho, "key_padding_mask", "bool, true where a key is padding",
                           dtype_text(key_padding_mask.scalar_type())));
  TORCH_CHECK_VALUE(key_padding_mask.dim() == 2, message(kWho, "key_padding_mask", "shape (N, K)",
                                                         shape_text(key_padding_mask.sizes())));
  return key_padding_mask.logical_not().unsqueeze(1).unsqueeze(1);
}

}  // namespace self_attention
