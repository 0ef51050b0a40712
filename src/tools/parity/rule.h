#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/parity/manifest.h"

namespace self_attention::parity {

enum class Backend : std::uint8_t { kEager, kAuto, kFused };
enum class Device : std::uint8_t { kCpu, kCuda };

/// "eager" / "auto" / "fused", "cpu" / "cuda".
std::string_view backend_name(Backend backend);
std::string_view device_name(Device device);

/// How a case is judged.
enum class Rule : std::uint8_t {
  kBitEqual,  ///< the recorded result, to the bit
  kTable,     ///< the recorded result, within the tolerance table
  kFloat64,   ///< the float64 result, within the table or twice the class's own error; 16 bits that
              ///< a fused path computes, within one rounding
  kRefusal,   ///< an error with the owed words
};

/// "bit-equal", "table", "float64", "refusal".
std::string_view rule_name(Rule rule);

/// Where and how cases run.
struct Target {
  Backend backend = Backend::kEager;
  Device device = Device::kCpu;
  /// Why bits cannot be demanded; empty where they are.
  std::string inexact_because;
};

/// The target for a manifest's cases, `here` being the machine that runs them.
Target make_target(const Manifest& manifest, const Environment& here, Backend backend,
                   Device device);

Rule rule_for(const CaseRecord& record, const Target& target);

/// One sentence: which rule holds for the target's "equal" cases, and why.
std::string explain(const Target& target);

}  // namespace self_attention::parity
