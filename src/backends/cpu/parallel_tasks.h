#pragma once

#include "backends/cpu/kernel/schedule.h"

namespace self_attention::cpu {

/// How many threads a call made here would be shared by: 1 inside a parallel region.
std::size_t available_threads();

/// Runs all tasks of a list on LibTorch's threads. Returns how many threads took part.
std::size_t run_tasks(TaskList& list);

}  // namespace self_attention::cpu
