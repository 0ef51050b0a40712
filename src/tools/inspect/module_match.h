#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/tensor_index.h"

namespace self_attention::inspect {

/// One of the library's modules whose parameters a file holds.
struct ModuleMatch {
  std::string prefix;  ///< what its names begin with: "encoder.attn.", or nothing
  std::string module;  ///< "SharedProjectionAttention", ...
  std::int64_t embed = 0;
  std::optional<std::int64_t> heads;  ///< where shapes tell: full projections do not
};

/// Finds every set of names and shapes that fits a module. SharedProjectionAttention and
/// InferredLengthAttention have the same parameters where heads divide embed; then the former is
/// named, and both can load them.
std::vector<ModuleMatch> match_modules(const io::TensorIndex& index);

}  // namespace self_attention::inspect
