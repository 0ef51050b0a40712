#include "tools/parity/case_result.h"

#include <fmt/format.h>

#include "io/text.h"

namespace self_attention::parity {
namespace {

/// "[1, 0, 3]" for a row-major place in `shape`.
std::string place_text(std::int64_t place, const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::size_t i = shape.size(); i-- > 0;) {
    text = fmt::format("{}{}{}", place % shape[i], text.empty() ? "" : ", ", text);
    place /= shape[i];
  }
  return "[" + text + "]";
}

const TensorResult* worse(const TensorResult* a, const TensorResult* b) {
  if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
  return b->comparison.severity() > a->comparison.severity() ? b : a;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kSkipped:
      return "skipped";
  }
  return "";
}

const TensorResult* CaseResult::worst(Quantity quantity) const {
  const TensorResult* result = nullptr;
  for (const TensorResult& tensor : tensors) {
    if (tensor.quantity == quantity) result = worse(result, &tensor);
  }
  return result;
}

const TensorResult* CaseResult::worst() const {
  return worse(worst(Quantity::kOutput), worst(Quantity::kGradient));
}

std::string describe(const TensorResult& tensor, const CaseResult& result) {
  const Comparison& comparison = tensor.comparison;
  if (comparison.index < 0) return fmt::format("{}: equal", tensor.name);
  // Enough digits to tell neighbouring numbers of the type apart.
  const int digits = result.record->dtype == io::ElementType::kFloat64 ? 17 : 9;
  const std::string allowed =
      result.rule == Rule::kBitEqual ? "the same bits" : fmt::format("{:.3g}", comparison.allowed);
  return fmt::format("{}{}: got {:.{}g}, expected {:.{}g}, error {:.3g}, allowed {} ({})",
                     tensor.name, place_text(comparison.index, tensor.shape), comparison.actual,
                     digits, comparison.expected, digits, comparison.error, allowed,
                     rule_name(result.rule));
}

}  // namespace self_attention::parity
