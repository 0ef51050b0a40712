#pragma once

#include <cstdint>

#include "io/input_file.h"

namespace self_attention::io {

/// Bytes of memory that the contents of a file may cost while it is read. A pickle can describe
/// more than it holds, since its values may be shared; what exceeds this is an attack.
inline std::uint64_t memory_allowance(const InputFile& file) {
  constexpr std::uint64_t kBase = std::uint64_t{64} << 20;
  return kBase + file.size();
}

}  // namespace self_attention::io
