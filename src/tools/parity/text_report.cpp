#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>

#include "io/text.h"
#include "tools/parity/report.h"

namespace self_attention::parity {
namespace {

constexpr std::size_t kMostFailuresShown = 20;

constexpr std::size_t kKeyColumns = 5;
constexpr std::size_t kColumns = 12;
using Row = std::array<std::string, kColumns>;

const Row kHeading = {"variant",      "dtype",   "mask",    "device",         "rule",    "cases",
                      "output error", "allowed", "verdict", "gradient error", "allowed", "verdict"};

using Group = std::vector<const CaseResult*>;

/// The first columns. Skipped cases of a variant share a row, whatever their dtype and mask.
std::array<std::string, kKeyColumns> key_of(const CaseResult& result) {
  const std::string variant(variant_name(result.record->variant));
  const std::string device(device_name(result.target.device));
  if (result.verdict == Verdict::kSkipped) return {variant, "all", "all", device, "-"};
  return {variant, std::string(io::element_name(result.record->dtype)), result.record->mask_kind,
          device, std::string(rule_name(result.rule))};
}

/// Whether the quantity is what made the case fail. A case without a failed tensor, in which the
/// library threw or gave another shape, counts as a failed output.
bool failed_in(const CaseResult& result, Quantity quantity) {
  const auto failed = [&](Quantity q) {
    const TensorResult* worst = result.worst(q);
    return worst != nullptr && !worst->comparison.passed;
  };
  if (failed(quantity)) return true;
  return quantity == Quantity::kOutput && result.verdict == Verdict::kFailed &&
         !failed(Quantity::kGradient);
}

std::array<std::string, 3> quantity_cells(const Group& group, Quantity quantity) {
  const TensorResult* worst = nullptr;
  std::size_t failures = 0;
  for (const CaseResult* result : group) {
    failures += failed_in(*result, quantity) ? 1 : 0;
    const TensorResult* candidate = result->worst(quantity);
    if (candidate == nullptr) continue;
    if (worst == nullptr || candidate->comparison.severity() > worst->comparison.severity()) {
      worst = candidate;
    }
  }
  const std::string verdict = failures == 0 ? "passed" : fmt::format("{} FAILED", failures);
  if (worst == nullptr) return {"-", "-", failures == 0 ? "-" : verdict};
  const Comparison& comparison = worst->comparison;
  return {fmt::format("{:.2g}", comparison.error / worst->scale),
          fmt::format("{:.2g}", comparison.allowed / worst->scale), verdict};
}

Row table_row(const std::array<std::string, kKeyColumns>& key, const Group& group) {
  Row row;
  std::ranges::copy(key, row.begin());
  row[kKeyColumns] = std::to_string(group.size());
  std::array<std::string, 3> output = {"-", "-", "-"};
  std::array<std::string, 3> gradient = {"-", "-", "-"};
  const CaseResult& first = *group.front();
  if (first.verdict == Verdict::kSkipped) {
    gradient.back() = "skipped: " + first.message;  // the last column, which may be wide
  } else if (first.rule == Rule::kRefusal) {
    const auto refused =
        static_cast<std::size_t>(std::ranges::count(group, Verdict::kPassed, &CaseResult::verdict));
    output.back() = fmt::format("{} of {} refused{}", refused, group.size(),
                                refused < group.size() ? ", FAILED" : "");
  } else {
    output = quantity_cells(group, Quantity::kOutput);
    gradient = quantity_cells(group, Quantity::kGradient);
  }
  std::ranges::move(gradient, std::ranges::move(output, row.begin() + kKeyColumns + 1).out);
  return row;
}

std::vector<Row> table_rows(const ParityRun& run) {
  std::vector<Row> rows = {kHeading};
  std::vector<std::array<std::string, kKeyColumns>> order;
  std::map<std::array<std::string, kKeyColumns>, Group> groups;
  for (const CaseResult& result : run.results) {
    const auto key = key_of(result);
    Group& group = groups[key];
    if (group.empty()) order.push_back(key);
    group.push_back(&result);
  }
  for (const auto& key : order) rows.push_back(table_row(key, groups.at(key)));
  return rows;
}

void append_table(std::string& text, const std::vector<Row>& rows) {
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const bool is_number = i >= kKeyColumns && kHeading[i] != "verdict";
      line += fmt::format(fmt::runtime(is_number ? "{:>{}}  " : "{:<{}}  "), row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
}

void append_rules(std::string& text, const ParityRun& run) {
  for (const DirectoryRun& directory : run.directories) {
    const Environment& made = directory.manifest->environment;
    text += fmt::format("{}: seed {}, torch {}, {}, {}, {} threads\n",
                        directory.manifest->directory, directory.manifest->seed, made.torch_version,
                        made.cpu_capability, made.cpu_model, made.threads);
    for (const Target& target : directory.targets) {
      text += fmt::format("  {} {}: {}\n", backend_name(target.backend), device_name(target.device),
                          explain(target));
    }
  }
  text +=
      "rules: bit-equal = the class's result to the bit; table = the class's result within the\n"
      "  tolerance table; float64 = the float64 result within the table or twice the class's own\n"
      "  error (departing from the class on purpose: the table alone); refusal = an owed error.\n"
      "error and allowed are in units of max(1, largest |expected|) over the output, or over all\n"
      "  gradients, of the case that comes closest to its limit.\n\n";
}

std::string full_name(const CaseResult& result) {
  return fmt::format("{} ({}, {})", result.record->name, device_name(result.target.device),
                     result.directory);
}

void append_failures(std::string& text, const ParityRun& run) {
  const std::size_t failures = run.count(Verdict::kFailed);
  if (failures == 0) return;
  text += "\n";
  std::size_t shown = 0;
  for (const CaseResult& result : run.results) {
    if (result.verdict != Verdict::kFailed) continue;
    if (shown++ == kMostFailuresShown) break;
    text += fmt::format("FAILED {}: {}\n", full_name(result), result.message);
  }
  if (failures > kMostFailuresShown) {
    text += fmt::format("... and {} more failed\n", failures - kMostFailuresShown);
  }
}

void append_worst(std::string& text, const ParityRun& run) {
  const CaseResult* worst = nullptr;
  for (const CaseResult& result : run.results) {
    const TensorResult* tensor = result.worst();
    if (tensor == nullptr || tensor->comparison.index < 0) continue;
    if (worst == nullptr || tensor->comparison.severity() > worst->worst()->comparison.severity()) {
      worst = &result;
    }
  }
  text += worst == nullptr ? "\nworst case: none, nothing differs from what is expected\n"
                           : fmt::format("\nworst case: {}: {}\n", full_name(*worst),
                                         describe(*worst->worst(), *worst));
}

}  // namespace

std::size_t ParityRun::count(Verdict verdict) const {
  return static_cast<std::size_t>(std::ranges::count(results, verdict, &CaseResult::verdict));
}

std::string text_report(const ParityRun& run) {
  std::string text;
  append_rules(text, run);
  append_table(text, table_rows(run));
  append_failures(text, run);
  append_worst(text, run);
  text += fmt::format("{} cases passed, {} failed, {} skipped\n", run.count(Verdict::kPassed),
                      run.count(Verdict::kFailed), run.count(Verdict::kSkipped));
  return text;
}

}  // namespace self_attention::parity
