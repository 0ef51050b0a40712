#pragma once

#include <torch/types.h>

namespace self_attention {

/// Whether large products are oneDNN's: LibTorch has it beside MKL, whose kernels are AVX2 ones on
/// processors that are not Intel's, and cpu_target() is "avx512". Not where
/// at::globalContext().setUserEnabledMkldnn(false), which is torch.backends.mkldnn.enabled.
bool prefers_onednn();

/// rows (…, a) times matrix (a, b), plus bias (b) where there is one -> (…, b), with every kind of
/// derivative. Large products of float32, as projection_plan.h has them, are oneDNN's where that is
/// preferred and no mode or transform looks on; BLAS does the others. Rows are copied unless they
/// are contiguous, since products of other layouts round differently.
torch::Tensor product(const torch::Tensor& rows, const torch::Tensor& matrix,
                      const torch::Tensor& bias = {}, bool onednn = prefers_onednn());

}  // namespace self_attention
