#include "tools/parity/parity_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <optional>
#include <stdexcept>

#include "io/output_file.h"
#include "tools/parity/environment.h"
#include "tools/parity/reference_case.h"
#include "tools/parity/report.h"
#include "tools/parity/run_case.h"
#include "tools/progress_bar.h"

namespace self_attention::parity {
namespace {

/// A manifest and the cases of it that run.
struct Selection {
  Manifest manifest;
  std::vector<const CaseRecord*> cases;
};

/// In a deque, since records are pointed to.
using Selections = std::deque<Selection>;

Backend backend_from(const std::string& name) {
  for (const Backend backend : {Backend::kAuto, Backend::kFused}) {
    if (name == backend_name(backend)) return backend;
  }
  return Backend::kEager;
}

std::vector<Device> devices_from(const std::string& name) {
  if (name == "cuda" && !has_cuda_device()) {
    throw std::runtime_error(
        "--device cuda: LibTorch finds no CUDA device; use --device cpu, or a CUDA build of "
        "LibTorch on a machine with a GPU");
  }
  if (name == "all") return {Device::kCpu, Device::kCuda};
  return {name == "cuda" ? Device::kCuda : Device::kCpu};
}

/// Reads everything that will be needed once, so that an altered file is found before any case
/// runs.
Selections select_cases(const ParityOptions& options) {
  Selections selections;
  std::size_t found = 0;
  for (const std::string& directory : options.directories) {
    Selection& selection = selections.emplace_back(Selection{read_manifest(directory), {}});
    ReferenceReader reader(selection.manifest);
    for (const CaseRecord& record : selection.manifest.cases) {
      if (record.name.find(options.filter) == std::string::npos) continue;
      reader.load(record);
      selection.cases.push_back(&record);
      ++found;
    }
  }
  if (found == 0) {
    throw std::runtime_error(
        fmt::format("--filter {}: no case has that text in its name, for example {} has not; "
                    "shorten the filter or leave it out",
                    options.filter, selections.front().manifest.cases.front().name));
  }
  return selections;
}

CaseResult skipped(const CaseRecord& record, const Target& target, std::string reason) {
  return {&record, target, rule_for(record, target), Verdict::kSkipped, std::move(reason), {}, ""};
}

ParityRun run_selections(const Selections& selections, Backend backend,
                         const std::vector<Device>& devices) {
  ParityRun run;
  std::size_t total = 0;
  for (const Selection& selection : selections) total += selection.cases.size() * devices.size();
  tools::ProgressBar progress(total);
  for (const Selection& selection : selections) {
    use_threads(selection.manifest.environment.threads);
    run.here = current_environment();
    DirectoryRun& directory = run.directories.emplace_back(DirectoryRun{&selection.manifest, {}});
    ReferenceReader reader(selection.manifest);
    for (const Device device : devices) {
      const Target target = make_target(selection.manifest, run.here, backend, device);
      const bool absent = device == Device::kCuda && !has_cuda_device();
      if (!absent) directory.targets.push_back(target);
      for (const CaseRecord* record : selection.cases) {
        CaseResult result = absent ? skipped(*record, target, "LibTorch finds no CUDA device")
                                   : run_case(reader.load(*record), target);
        result.directory = selection.manifest.directory;
        run.results.push_back(std::move(result));
        progress.advance();
      }
    }
  }
  return run;
}

}  // namespace

CLI::App* add_parity_command(CLI::App& app, ParityOptions& options) {
  CLI::App* command =
      app.add_subcommand("parity", "Runs the modules on tensors exported from the Python classes");
  command->add_option("DIR", options.directories, "Directories that export_reference.py wrote")
      ->required();
  command->add_option("--device", options.device, "Where the cases run")
      ->check(CLI::IsMember({"cpu", "cuda", "all"}))
      ->capture_default_str();
  command->add_option("--backend", options.backend, "Which implementation runs")
      ->check(CLI::IsMember({"eager", "auto", "fused"}))
      ->capture_default_str();
  command->add_option("--filter", options.filter,
                      "Run only the cases with this text in their name");
  command->add_option("--json", options.json, "Write the results by case to this file");
  command->footer(
      "Exit code: 0 all cases passed; 1 a case failed; 2 the input could not be used.\n");
  return command;
}

int run_parity(const ParityOptions& options) {
  const Backend backend = backend_from(options.backend);
  const std::vector<Device> devices = devices_from(options.device);
  std::optional<io::OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  const Selections selections = select_cases(options);
  const ParityRun run = run_selections(selections, backend, devices);
  fmt::print("{}", text_report(run));
  if (json) {
    json->write(json_report(run));
    json->commit();
  }
  return run.count(Verdict::kFailed) == 0 && run.count(Verdict::kPassed) > 0 ? 0 : 1;
}

}  // namespace self_attention::parity
