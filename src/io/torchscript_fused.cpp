#include "io/torchscript_fused.h"

namespace self_attention::io {
namespace {

std::string function_name(ScriptVariant variant) {
  return std::string(variant_name(variant)) + "_attention";
}

/// In the order of the op's schema.
std::vector<std::string> parameters(ScriptVariant variant) {
  if (variant == ScriptVariant::kFullProjection) {
    return {"q_linear.weight", "q_linear.bias", "k_linear.weight",      "k_linear.bias",
            "v_linear.weight", "v_linear.bias", "output_linear.weight", "output_linear.bias"};
  }
  return {"values.weight", "keys.weight", "queries.weight", "fc_out.weight", "fc_out.bias"};
}

}  // namespace

std::string fused_operator(ScriptVariant variant) {
  return std::string(kOpNamespace) + "::" + function_name(variant);
}

std::string fused_call(const ScriptForm& form) {
  std::string call = std::string(kOpNamespace) + "." + function_name(form.variant) + "(";
  for (const std::string& argument : script_arguments(form)) {
    call += argument + ", ";
    if (argument == "x") call += "None, None, ";  // keys and query
  }
  if (form.mask == ScriptMask::kNone) call += "None, ";
  for (const std::string& parameter : parameters(form.variant)) call += "self." + parameter + ", ";
  return call + std::to_string(form.heads) + (form.is_causal ? ", True)" : ", False)");
}

}  // namespace self_attention::io
