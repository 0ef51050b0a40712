// Compiled with -fopenmp, without which at::parallel_for runs on one thread.
#include "backends/cpu/parallel_tasks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

namespace self_attention::cpu {
namespace {

/// Tasks that follow one another, with which a thread begins: so threads seldom write to
/// neighbouring rows, and a thread finds in its cache what the last call left there. Alone in its
/// cache lines.
struct alignas(128) Share {
  std::atomic<std::size_t> next;
  std::size_t end = 0;
};

/// More threads begin by several with one: who is done looks through all shares.
constexpr std::size_t kMostShares = 16;

/// Runs the tasks of one share, then what is left of the others.
template <typename Run>
void run_shares(std::span<Share> shares, std::size_t own, const Run& run) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    Share& share = shares[(own + i) % shares.size()];
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const std::size_t task = share.next.fetch_add(1, std::memory_order_relaxed);
      if (task < share.end) run(task);
    }
  }
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
    const std::size_t count = std::min(threads, kMostShares);
    std::array<Share, kMostShares> shares;
    for (std::size_t i = 0; i < count; ++i) {
      const Range part = even_part(i, count, tasks);
      shares[i].next = part.begin;
      shares[i].end = part.end;
    }
    const auto work = [&](std::int64_t thread, std::int64_t /*end*/) {
      if (round == 0) ++workers;
      // Kept between calls: fresh memory costs more than short sequences do.
      thread_local Workspace space;
      const std::size_t own = static_cast<std::size_t>(thread) * count / threads;
      run_shares(std::span(shares).first(count), own,
                 [&](std::size_t task) { list.run(round, task, space); });
      space.trim();
    };
    at::parallel_for(0, static_cast<std::int64_t>(threads), 1, work);
  }
  return workers;
}

}  // namespace self_attention::cpu
