#include "tools/parity/rule.h"

#include <fmt/format.h>

#include "io/text.h"

namespace self_attention::parity {
namespace {

/// "2.13.0+cpu" -> "2.13.0": the build of a wheel is not the version of its arithmetic.
std::string_view release(std::string_view torch_version) {
  return torch_version.substr(0, torch_version.find('+'));
}

std::string difference(const Environment& there, const Environment& here) {
  const auto differs = [](std::string_view what, std::string_view before, std::string_view now) {
    return fmt::format("the manifest was made {} {}, this is {}", what, io::in_quotes(before),
                       io::in_quotes(now));
  };
  if (release(there.torch_version) != release(here.torch_version)) {
    return differs("with torch", there.torch_version, here.torch_version);
  }
  if (there.cpu_capability != here.cpu_capability) {
    return differs("with CPU capability", there.cpu_capability, here.cpu_capability);
  }
  if (there.cpu_model != here.cpu_model) {
    return differs("on CPU model", there.cpu_model, here.cpu_model);
  }
  if (there.threads != here.threads) {
    return fmt::format("the manifest was made with {} threads, this runs with {}", there.threads,
                       here.threads);
  }
  return "";
}

}  // namespace

std::string_view backend_name(Backend backend) {
  switch (backend) {
    case Backend::kEager:
      return "eager";
    case Backend::kAuto:
      return "auto";
    case Backend::kFused:
      return "fused";
  }
  return "";
}

std::string_view device_name(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

std::string_view rule_name(Rule rule) {
  switch (rule) {
    case Rule::kBitEqual:
      return "bit-equal";
    case Rule::kTable:
      return "table";
    case Rule::kFloat64:
      return "float64";
    case Rule::kRefusal:
      return "refusal";
  }
  return "";
}

Target make_target(const Manifest& manifest, const Environment& here, Backend backend,
                   Device device) {
  Target target{backend, device, ""};
  if (backend != Backend::kEager) {
    target.inexact_because = fmt::format(
        "the {} backend may round differently from the Python class", backend_name(backend));
  } else if (device != Device::kCpu) {
    target.inexact_because = "the manifest was made on the CPU";
  } else if (manifest.snapshot) {
    target.inexact_because = "the directory is a snapshot, made for every machine";
  } else {
    target.inexact_because = difference(manifest.environment, here);
  }
  return target;
}

Rule rule_for(const CaseRecord& record, const Target& target) {
  if (record.owes == Owes::kRefuse) return Rule::kRefusal;
  if (record.owes == Owes::kDeparts) return Rule::kFloat64;
  if (target.inexact_because.empty()) return Rule::kBitEqual;
  // A float64 case has no better result to be compared with than the recorded one.
  const bool rounds_differently = target.backend != Backend::kEager;
  return rounds_differently && record.dtype != io::ElementType::kFloat64 ? Rule::kFloat64
                                                                         : Rule::kTable;
}

std::string explain(const Target& target) {
  if (target.inexact_because.empty()) {
    return "bit-equal: torch version, CPU capability, CPU model and threads are the manifest's";
  }
  return fmt::format("{}: {}", target.backend != Backend::kEager ? "float64" : "table",
                     target.inexact_because);
}

}  // namespace self_attention::parity
