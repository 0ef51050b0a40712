#pragma once

#include <self_attention/api.h>

#include <string>
#include <vector>

namespace self_attention {

/// The instruction sets that the fused CPU kernel can run with on this machine, the fastest first:
/// of "avx512", "avx2", "sse4" and "scalar", which runs anywhere.
SELF_ATTENTION_API std::vector<std::string> cpu_targets();

/// The one in use: the first of cpu_targets(), unless the environment variable
/// SELF_ATTENTION_CPU_TARGET or set_cpu_target() name another. Throws c10::ValueError where the
/// variable names one that this machine or build lacks.
SELF_ATTENTION_API std::string cpu_target();

/// Has all later calls use that instruction set. Results of different ones may differ in rounding.
/// Throws c10::ValueError for a name that is not among cpu_targets().
SELF_ATTENTION_API void set_cpu_target(const std::string& name);

}  // namespace self_attention
