#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/parity/comparison.h"
#include "tools/parity/manifest.h"
#include "tools/parity/rule.h"
#include "tools/parity/tolerance.h"

namespace self_attention::parity {

enum class Verdict : std::uint8_t { kPassed, kFailed, kSkipped };

/// "passed", "failed", "skipped".
std::string_view verdict_name(Verdict verdict);

/// One compared tensor of a case.
struct TensorResult {
  std::string name;  ///< "output" or "gradient.NAME"
  Quantity quantity;
  std::vector<std::int64_t> shape;
  Comparison comparison;
  double scale = 1;  ///< what the tolerance was multiplied with
};

struct CaseResult {
  const CaseRecord* record;
  Target target;
  Rule rule;
  Verdict verdict = Verdict::kPassed;
  std::string message;                ///< why it failed or was skipped, else empty
  std::vector<TensorResult> tensors;  ///< empty for refusals and where the library threw
  std::string directory;              ///< of the manifest, to tell equal names apart

  /// The tensor of that quantity with the largest severity, or nullptr.
  const TensorResult* worst(Quantity quantity) const;
  /// The same over both quantities.
  const TensorResult* worst() const;
};

/// "gradient.x[0, 2]: got 1.5, expected 1, error 0.5, allowed 1e-06 (table)".
std::string describe(const TensorResult& tensor, const CaseResult& result);

}  // namespace self_attention::parity
