// Compiled with -fopenmp, without which at::parallel_for runs on one thread.
#include "backends/cpu/parallel_tasks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace self_attention::cpu {

std::size_t available_threads() {
  return at::in_parallel_region() ? 1 : static_cast<std::size_t>(at::get_num_threads());
}

std::size_t run_tasks(TaskList& list) {
  std::atomic<std::size_t> workers = 0;
  for (std::size_t round = 0; round < TaskList::kRounds; ++round) {
    const std::size_t tasks = list.tasks(round);
    if (tasks == 0) continue;
    const std::size_t threads = std::min(available_threads(), tasks);
    // Taken a few at a time: fewer visits to the shared counter, and none waits long at the end.
    const std::size_t batch = std::max<std::size_t>(tasks / (16 * threads), 1);
    std::atomic<std::size_t> next = 0;
    at::parallel_for(0, static_cast<std::int64_t>(threads), 1, [&](std::int64_t, std::int64_t) {
      if (round == 0) ++workers;
      // Kept between calls: fresh memory costs more than short sequences do.
      thread_local Workspace space;
      for (;;) {
        const std::size_t first = next.fetch_add(batch, std::memory_order_relaxed);
        if (first >= tasks) break;
        const std::size_t end = std::min(first + batch, tasks);
        for (std::size_t task = first; task < end; ++task) list.run(round, task, space);
      }
      space.trim();
    });
  }
  return workers;
}

}  // namespace self_attention::cpu
