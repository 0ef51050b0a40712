#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

namespace self_attention {

/// The dtypes of a fused forward: float32 inside, rounded once at the end. While it lives autocast
/// leaves the operations alone.
class WideArithmetic {
 public:
  /// `like`: a tensor of the module's dtype, which is the result's, but for autocast.
  explicit WideArithmetic(const torch::Tensor& like);

  /// float32 in place of bfloat16 and float16.
  torch::Tensor operator()(const torch::Tensor& tensor) const {
    return is_narrow(tensor) ? tensor.to(torch::kFloat32) : tensor;
  }
  /// Makes both float32 unless they have one dtype.
  void match(torch::Tensor& a, torch::Tensor& b) const {
    if (a.scalar_type() == b.scalar_type()) return;
    a = (*this)(a);
    b = (*this)(b);
  }
  torch::Tensor rounded(const torch::Tensor& result) const {
    return result.scalar_type() == result_type_ ? result : result.to(result_type_);
  }

 private:
  static bool is_narrow(const torch::Tensor& tensor) {
    return tensor.scalar_type() == torch::kBFloat16 || tensor.scalar_type() == torch::kFloat16;
  }

  torch::ScalarType result_type_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
};

}  // namespace self_attention
