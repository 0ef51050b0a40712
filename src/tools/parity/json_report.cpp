#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/parity/report.h"

namespace self_attention::parity {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinities and no NaN: those become texts.
Json number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

Json environment_json(const Environment& environment) {
  return {{"torch_version", environment.torch_version},
          {"cpu_capability", environment.cpu_capability},
          {"cpu_model", environment.cpu_model},
          {"threads", environment.threads}};
}

Json directory_json(const DirectoryRun& directory) {
  Json targets = Json::array();
  for (const Target& target : directory.targets) {
    targets.push_back({{"backend", backend_name(target.backend)},
                       {"device", device_name(target.device)},
                       {"rule", explain(target)}});
  }
  return {{"path", directory.manifest->directory},
          {"snapshot", directory.manifest->snapshot},
          {"seed", directory.manifest->seed},
          {"environment", environment_json(directory.manifest->environment)},
          {"targets", std::move(targets)}};
}

/// The tensor that comes closest to its limit, or null where none was compared.
Json tensor_json(const TensorResult* tensor) {
  if (tensor == nullptr) return nullptr;
  const Comparison& comparison = tensor->comparison;
  return {{"tensor", tensor->name},
          {"passed", comparison.passed},
          {"error", number(comparison.error)},
          {"allowed", number(comparison.allowed)},
          {"scale", number(tensor->scale)},
          {"index", comparison.index},
          {"got", number(comparison.actual)},
          {"expected", number(comparison.expected)}};
}

Json case_json(const CaseResult& result) {
  return {{"name", result.record->name},
          {"directory", result.directory},
          {"variant", variant_name(result.record->variant)},
          {"dtype", io::element_name(result.record->dtype)},
          {"mask_kind", result.record->mask_kind},
          {"owes", owes_name(result.record->owes)},
          {"device", device_name(result.target.device)},
          {"backend", backend_name(result.target.backend)},
          {"rule", rule_name(result.rule)},
          {"verdict", verdict_name(result.verdict)},
          {"message", result.message},
          {"output", tensor_json(result.worst(Quantity::kOutput))},
          {"gradient", tensor_json(result.worst(Quantity::kGradient))}};
}

}  // namespace

std::string json_report(const ParityRun& run) {
  Json directories = Json::array();
  for (const DirectoryRun& directory : run.directories) {
    directories.push_back(directory_json(directory));
  }
  Json cases = Json::array();
  for (const CaseResult& result : run.results) cases.push_back(case_json(result));
  const Json report = {{"format", "self-attention-parity-report"},
                       {"format_version", 1},
                       {"environment", environment_json(run.here)},
                       {"directories", std::move(directories)},
                       {"totals",
                        {{"passed", run.count(Verdict::kPassed)},
                         {"failed", run.count(Verdict::kFailed)},
                         {"skipped", run.count(Verdict::kSkipped)}}},
                       {"cases", std::move(cases)}};
  // A path need not be UTF-8, a JSON text must be.
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace self_attention::parity
