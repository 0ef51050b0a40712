#pragma once

#include <torch/types.h>

#include <cstdint>

namespace self_attention {

/// Whether large products are oneDNN's: LibTorch has it beside MKL, whose kernels are AVX2 ones on
/// processors that are not Intel's, and cpu_target() is "avx512". Not where
/// at::globalContext().setUserEnabledMkldnn(false), which is torch.backends.mkldnn.enabled.
bool prefers_onednn();

/// Whether a product of n rows by (a, b) is large: from 2^21 multiply-adds, where half their time
/// is what a call of oneDNN costs, 10 µs.
bool is_large_product(std::int64_t n, std::int64_t a, std::int64_t b);

/// rows (…, a) times matrix (a, b), plus bias (b) where there is one -> (…, b), with every kind of
/// derivative. Large products of float32 are oneDNN's where that is preferred, all others and
/// whatever a mode or transform looks at are BLAS's. Rows are copied unless they are contiguous,
/// since products of other layouts round differently.
torch::Tensor product(const torch::Tensor& rows, const torch::Tensor& matrix,
                      const torch::Tensor& bias = {}, bool onednn = prefers_onednn());

}  // namespace self_attention
