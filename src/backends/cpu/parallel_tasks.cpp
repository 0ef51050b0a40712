// Compiled with -fopenmp, without which at::parallel_for runs on one thread.
#include "backends/cpu/parallel_tasks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace self_attention::cpu {
namespace {

/// The tasks that one thread begins with. They follow one another, so that threads seldom write to
/// neighbouring rows, and a thread finds in its cache what the last call left there. Alone in its
/// cache lines.
struct alignas(128) Share {
  std::atomic<std::size_t> next;
  std::size_t end;
};

std::vector<Share> share_out(std::size_t tasks, std::size_t threads) {
  std::vector<Share> shares(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    shares[i].next = i * tasks / threads;
    shares[i].end = (i + 1) * tasks / threads;
  }
  return shares;
}

}  // namespace

std::size_t available_threads() {
  return at::in_parallel_region() ? 1 : static_cast<std::size_t>(at::get_num_threads());
}

std::size_t run_tasks(TaskList& list) {
  std::atomic<std::size_t> workers = 0;
  for (std::size_t round = 0; round < TaskList::kRounds; ++round) {
    const std::size_t tasks = list.tasks(round);
    if (tasks == 0) continue;
    const std::size_t threads = std::min(available_threads(), tasks);
    std::vector<Share> shares = share_out(tasks, threads);
    at::parallel_for(0, static_cast<std::int64_t>(threads), 1, [&](std::int64_t own, std::int64_t) {
      if (round == 0) ++workers;
      // Kept between calls: fresh memory costs more than short sequences do.
      thread_local Workspace space;
      // Its own share, then what is left of the others'.
      for (std::size_t i = 0; i < threads; ++i) {
        Share& share = shares[(static_cast<std::size_t>(own) + i) % threads];
        for (;;) {
          const std::size_t task = share.next.fetch_add(1, std::memory_order_relaxed);
          if (task >= share.end) break;
          list.run(round, task, space);
        }
      }
      space.trim();
    });
  }
  return workers;
}

}  // namespace self_attention::cpu
