#pragma once

#include <map>
#include <string>
#include <string_view>

#include "io/torchscript_source.h"

namespace self_attention::io {

/// The extra file of an exported archive, at ROOT/extra/.
inline constexpr std::string_view kScriptInfoFile = "self_attention.json";

/// What the extra file says: versions, sizes and options, as one JSON object.
std::string script_info(const ScriptForm& form, bool frozen, std::string_view torch_version);

/// The members of such an object as texts; empty for anything else, since other programs may name
/// their files so.
std::map<std::string, std::string> parse_script_info(std::string_view json);

}  // namespace self_attention::io
