#pragma once

#include <self_attention/io/script_signature.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace self_attention::io {

enum class ScriptVariant : std::uint8_t { kSharedProjection, kFullProjection, kInferredLength };

/// What a forward in TorchScript is written for.
struct ScriptForm {
  ScriptVariant variant = ScriptVariant::kSharedProjection;
  std::int64_t embed = 0;
  std::int64_t heads = 0;
  ScriptMask mask = ScriptMask::kRequired;
  ScriptInputs inputs = ScriptInputs::kSeparate;
  ScriptOps ops = ScriptOps::kPortable;
  bool is_causal = false;  ///< of kFused alone

  std::int64_t head_dim() const { return embed / heads; }
};

/// "shared_projection", ...
std::string_view variant_name(ScriptVariant variant);
/// "SharedProjectionAttention", ...
std::string_view module_name(ScriptVariant variant);
/// "required", "none", "optional".
std::string_view mask_name(ScriptMask mask);
/// "separate", "single".
std::string_view inputs_name(ScriptInputs inputs);

/// "portable", "fused".
std::string_view ops_name(ScriptOps ops);

/// The names of forward's arguments, in order and without self.
std::vector<std::string> script_arguments(const ScriptForm& form);

/// The methods of a module in TorchScript: `forward`, and what it refuses arguments with, in the
/// words of the C++ module. They read the parameters of children called as in the C++ module.
///
/// The operations are those of the C++ module, so that results are equal to the bit, also where the
/// archive's parameters are converted to another dtype later. What is written differently comes to
/// the same kernels on the same memory: views by transpose and view for the module's permute, and
/// the product of q and k by the matmul that einsum makes of it.
///
/// Of kFused it is the call of an op of this library, which refuses arguments itself. It finds the
/// op in a name self_attention.
std::string script_source(const ScriptForm& form);

/// Schemas, as LibTorch prints them, of the operators that portable scripts may use: long-standing
/// ones, which the servers that load archives know.
std::span<const std::string_view> portable_operators();

}  // namespace self_attention::io
