#pragma once

#include <cstddef>
#include <vector>

#include "backends/cpu/kernel/kernel.h"

namespace self_attention::cpu {

/// A call of attention as tasks that threads may take in any order.
///
/// Two rounds, the second often empty: every task of the first before any of the second. Tasks
/// write to different rows. How many threads there are decides how queries are grouped, never how a
/// row is summed, so results do not depend on it.
class Schedule {
 public:
  Schedule(const AttentionProblem& problem, const Kernel& kernel, std::size_t threads);

  static constexpr std::size_t kRounds = 2;
  std::size_t tasks(std::size_t round) const;
  void run(std::size_t round, std::size_t task, Workspace& space);

 private:
  bool by_row() const { return chunks_ > 0; }
  Head head_of(std::size_t index) const { return {index / problem_.heads, index % problem_.heads}; }
  void run_block(std::size_t task, Workspace& space) const;
  void run_chunk(std::size_t task, Workspace& space);
  void merge(std::size_t task, Workspace& space);

  const AttentionProblem& problem_;
  const Kernel& kernel_;
  std::size_t head_count_;
  std::size_t pieces_ = 1;  // of a head's queries, or of the heads where each query is alone
  std::size_t chunks_ = 0;  // of a head's keys, where each query is computed alone
  std::vector<RowResult> rows_;
  std::vector<float> sums_;
};

}  // namespace self_attention::cpu
