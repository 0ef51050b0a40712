#pragma once

#include <cstddef>
#include <vector>

#include "backends/cpu/kernel/kernel.h"

namespace self_attention::cpu {

/// Work as tasks that threads may take in any order.
///
/// Two rounds, the second often empty: every task of the first before any of the second. Tasks
/// write to different rows.
class TaskList {
 public:
  virtual ~TaskList() = default;

  static constexpr std::size_t kRounds = 2;
  virtual std::size_t tasks(std::size_t round) const = 0;
  virtual void run(std::size_t round, std::size_t task, Workspace& space) = 0;
};

/// A call of attention. How many threads there are decides how queries are grouped, never how a row
/// is summed, so results do not depend on it.
class Schedule final : public TaskList {
 public:
  Schedule(const AttentionProblem& problem, const Kernel& kernel, std::size_t threads);

  std::size_t tasks(std::size_t round) const override;
  void run(std::size_t round, std::size_t task, Workspace& space) override;

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

/// The gradients of a call. The keys of a head are shared out by the shapes alone.
class GradientSchedule final : public TaskList {
 public:
  GradientSchedule(const GradientProblem& problem, const Kernel& kernel);

  std::size_t tasks(std::size_t round) const override;
  void run(std::size_t round, std::size_t task, Workspace& space) override;

 private:
  const GradientProblem& problem_;
  const Kernel& kernel_;
  std::size_t head_count_;
  std::size_t pieces_;              // of a head's keys
  AlignedArray<float> grad_query_;  // by piece, batch, head, query and column, where there are many
};

}  // namespace self_attention::cpu
