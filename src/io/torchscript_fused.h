#pragma once

#include <string>
#include <string_view>

#include "io/torchscript_source.h"

namespace self_attention::io {

/// The namespace of the library's ops, by which scripts call them.
inline constexpr std::string_view kOpNamespace = "self_attention";

/// "self_attention::shared_projection_attention", ...: the functional form of the module.
std::string fused_operator(ScriptVariant variant);

/// The call of that op with forward's arguments and the module's parameters.
std::string fused_call(const ScriptForm& form);

/// Where the module's class lies. LibTorch names the file of a call that it cannot resolve by the
/// scope of the class, which is the one place where it shows words of ours.
inline constexpr std::string_view kFusedScope = "load_libself_attention_so_before_this_archive";

/// The same for those who ask before loading.
inline constexpr std::string_view kFusedNeeds =
    "libself_attention.so, loaded before the archive: torch.ops.load_library in Python, linking "
    "SelfAttention::self_attention in C++, LD_PRELOAD for a server";

}  // namespace self_attention::io
