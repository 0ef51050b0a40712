#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/parity/case_result.h"
#include "tools/parity/manifest.h"
#include "tools/parity/rule.h"

namespace self_attention::parity {

/// One reference directory in a run.
struct DirectoryRun {
  const Manifest* manifest;
  std::vector<Target> targets;  ///< in which its cases ran
};

/// Everything that a parity run found out.
struct ParityRun {
  Environment here;
  std::vector<DirectoryRun> directories;
  std::vector<CaseResult> results;

  std::size_t count(Verdict verdict) const;
};

/// For people: the rules and why they hold, one table row per variant, dtype, mask kind, device and
/// rule, the failed cases, the worst case and the totals.
std::string text_report(const ParityRun& run);

/// For programs, as JSON: the same by case.
std::string json_report(const ParityRun& run);

}  // namespace self_attention::parity
