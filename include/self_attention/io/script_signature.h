#pragma once

#include <cstdint>

namespace self_attention {

/// Whether the forward of an exported archive takes a mask.
enum class ScriptMask : std::uint8_t {
  kRequired,  ///< `mask: Tensor`, the last argument
  kNone,      ///< no such argument
  kOptional,  ///< `mask: Optional[Tensor] = None`, which servers such as Triton refuse
};

/// Which tensors the forward of an exported archive takes before the mask.
enum class ScriptInputs : std::uint8_t {
  kSeparate,  ///< values, keys and query
  kSingle,    ///< x, which stands for all three: FullProjectionAttention's self-attention
};

/// What the forward of an exported archive is made of.
enum class ScriptOps : std::uint8_t {
  kPortable,  ///< long-standing ATen operators: runs without this library
  kFused,     ///< the module's functional form, an op of this library, which must be loaded first
};

}  // namespace self_attention
