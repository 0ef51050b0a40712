#include "io/torchscript_info.h"

#include <nlohmann/json.hpp>

#include "io/torchscript_fused.h"

namespace self_attention::io {

std::string script_info(const ScriptForm& form, bool frozen, std::string_view torch_version) {
  nlohmann::ordered_json info = {{"format", "self-attention-torchscript"},
                                 {"library_version", SELF_ATTENTION_VERSION},
                                 {"torch_version", torch_version},
                                 {"variant", variant_name(form.variant)},
                                 {"embed", form.embed},
                                 {"heads", form.heads},
                                 {"mask", mask_name(form.mask)},
                                 {"inputs", inputs_name(form.inputs)},
                                 {"frozen", frozen},
                                 {"ops", ops_name(form.ops)}};
  if (form.ops == ScriptOps::kFused) {
    info["is_causal"] = form.is_causal;
    info["operator"] = fused_operator(form.variant);
    info["needs"] = kFusedNeeds;
  }
  return info.dump(1) + "\n";
}

std::map<std::string, std::string> parse_script_info(std::string_view json) {
  // Far more than is ever written, and little enough for any parser.
  constexpr std::size_t kMostBytes = 4096;
  if (json.size() > kMostBytes) return {};
  const auto info = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!info.is_object()) return {};
  std::map<std::string, std::string> members;
  for (const auto& [key, value] : info.items()) {
    if (value.is_structured()) return {};
    members[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return members;
}

}  // namespace self_attention::io
