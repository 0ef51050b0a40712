#pragma once

#include <cstdint>

#include "io/element_type.h"

namespace self_attention::parity {

enum class Quantity : std::uint8_t {
  kOutput,
  kGradient,
  kFusedOutput,    ///< of the fused kernel or a fused forward, against the float64 result
  kFusedGradient,  ///< likewise, of 16 bits: an input used three times sums three rounded gradients
};

/// The largest error that passes, in units of max(1, largest finite |expected element|) over a
/// case's output, or over all its gradients together. One table serves every comparison of this
/// project that does not demand bits. `type` is the module's, a floating type.
double tolerance(io::ElementType type, Quantity quantity);

}  // namespace self_attention::parity
