#include <ATen/autocast_mode.h>

#include "ops/attention_op.h"
#include "ops/registration.h"

namespace self_attention {
namespace {

/// Floating inputs in autocast's dtype, as for matrix products. The mask stays as it is.
template <c10::DeviceType kDevice>
torch::Tensor attention_autocast(const torch::Tensor& query, const torch::Tensor& key,
                                 const torch::Tensor& value,
                                 const std::optional<torch::Tensor>& mask, double scale,
                                 bool is_causal, double dropout_p) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const auto type = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [&](const torch::Tensor& tensor) {
    return at::autocast::cached_cast(type, tensor, kDevice);
  };
  return call_attention({cast(query), cast(key), cast(value), mask, scale, is_causal, dropout_p});
}

SELF_ATTENTION_KERNELS(AutocastCPU, library) {
  library.impl("attention", attention_autocast<c10::DeviceType::CPU>);
}

SELF_ATTENTION_KERNELS(AutocastCUDA, library) {
  library.impl("attention", attention_autocast<c10::DeviceType::CUDA>);
}

}  // namespace
}  // namespace self_attention
