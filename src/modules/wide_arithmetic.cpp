#include "modules/wide_arithmetic.h"

#include <ATen/autocast_mode.h>

namespace self_attention {
namespace {

torch::ScalarType result_type(const torch::Tensor& like) {
  const auto device = like.device().type();
  // As for the linear layer that comes last.
  return at::autocast::is_autocast_enabled(device) && like.scalar_type() != torch::kFloat64
             ? at::autocast::get_autocast_dtype(device)
             : like.scalar_type();
}

}  // namespace

WideArithmetic::WideArithmetic(const torch::Tensor& like)
    : result_type_(result_type(like)),
      no_autocast_(at::autocast::get_autocast_dispatch_key_from_device_type(like.device().type())) {
}

}  // namespace self_attention
