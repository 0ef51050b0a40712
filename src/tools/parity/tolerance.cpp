#include "tools/parity/tolerance.h"

#include <stdexcept>

namespace self_attention::parity {
namespace {

double fused_tolerance(io::ElementType type) {
  switch (type) {
    case io::ElementType::kFloat32:
      return 4e-6;
    case io::ElementType::kBFloat16:
      return 0x1p-8 + 4e-6;
    case io::ElementType::kFloat16:
      return 0x1p-11 + 4e-6;
    default:
      throw std::invalid_argument("tolerance: expected a type that the fused kernel takes");
  }
}

}  // namespace

// Five to ten times the largest error seen, which was, for output and gradients,
//   float64 5.1e-16 1.0e-15, float32 9.9e-7 1.3e-6, bfloat16 2.1e-2 3.0e-2, float16 2.0e-3 2.7e-3,
// over the whole grid of export_reference.py under ten seeds: the eager backend with ATen's plain
// kernels, MKL's and oneDNN's for SSE4, and one thread, against results of AVX2 and two threads;
// and its rounding against float64 in the cases that depart from the Python class.
//
// What is fused computes in float32 and rounds once: half a unit in the last place, and float32's
// own error.
double tolerance(io::ElementType type, Quantity quantity) {
  if (quantity == Quantity::kFusedOutput) return fused_tolerance(type);
  if (quantity == Quantity::kFusedGradient) return 2 * fused_tolerance(type);
  const bool output = quantity == Quantity::kOutput;
  switch (type) {
    case io::ElementType::kFloat64:
      return output ? 5e-15 : 1e-14;
    case io::ElementType::kFloat32:
      return output ? 5e-6 : 8e-6;
    case io::ElementType::kBFloat16:
      return output ? 1e-1 : 1.5e-1;
    case io::ElementType::kFloat16:
      return output ? 1e-2 : 1.5e-2;
    default:
      throw std::invalid_argument("tolerance: expected a floating type");
  }
}

}  // namespace self_attention::parity
