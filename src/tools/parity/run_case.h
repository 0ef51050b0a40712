#pragma once

#include "tools/parity/case_result.h"
#include "tools/parity/reference_case.h"
#include "tools/parity/rule.h"

namespace self_attention::parity {

/// Runs the library's module on one case and judges output and gradients, or the refusal.
///
/// Whatever the library throws is the case's failure and ends up in the result's message. The
/// result points to the case's record.
CaseResult run_case(const ReferenceCase& reference, const Target& target);

}  // namespace self_attention::parity
