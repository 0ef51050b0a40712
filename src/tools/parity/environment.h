#pragma once

#include "tools/parity/manifest.h"

namespace self_attention::parity {

/// LibTorch and the machine as they are now.
Environment current_environment();

/// Makes LibTorch's CPU operations use that many threads.
void use_threads(int threads);

bool has_cuda_device();

}  // namespace self_attention::parity
