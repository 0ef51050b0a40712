#include "backends/cpu/kernel/schedule.h"

#include <algorithm>

namespace self_attention::cpu {
namespace {

/// Up to here each query reads keys and values itself, which costs less than packing them.
constexpr std::size_t kFewQueries = 4;
/// Packing keys and values again for fewer queries would cost too much.
constexpr std::size_t kSmallestPiece = 192;
constexpr std::size_t kLargestPiece = 1024;

bool has_rows(const ConstView& view, std::size_t columns) {
  return columns == 1 || view.strides[3] == 1;
}

}  // namespace

Schedule::Schedule(const AttentionProblem& problem, const Kernel& kernel, std::size_t threads)
    : problem_(problem), kernel_(kernel), head_count_(problem.batch * problem.heads) {
  const std::size_t queries = problem.query_length;
  if (queries <= kFewQueries && problem.key_length > 0 && has_rows(problem.key, problem.head_dim) &&
      has_rows(problem.value, problem.value_dim)) {
    chunks_ = (problem.key_length + kKeysPerChunk - 1) / kKeysPerChunk;
    rows_.resize(head_count_ * queries * chunks_);
    sums_.resize(rows_.size() * problem.value_dim);
    return;
  }
  // Some tasks more than threads, so that none waits long for the last one.
  const std::size_t wanted = threads > 1 ? 4 * threads : 1;
  const std::size_t most = std::max<std::size_t>(queries / kSmallestPiece, 1);
  const std::size_t least = (queries + kLargestPiece - 1) / kLargestPiece;
  pieces_ = std::max(
      least, std::min(most, (wanted + head_count_ - 1) / std::max<std::size_t>(head_count_, 1)));
}

std::size_t Schedule::tasks(std::size_t round) const {
  if (!by_row()) return round == 0 ? head_count_ * pieces_ : 0;
  return round == 0 ? rows_.size() : rows_.size() / chunks_;
}

void Schedule::run(std::size_t round, std::size_t task, Workspace& space) {
  if (!by_row()) {
    run_block(task, space);
  } else if (round == 0) {
    run_chunk(task, space);
  } else {
    merge(task, space);
  }
}

void Schedule::run_block(std::size_t task, Workspace& space) const {
  const std::size_t piece = task % pieces_;
  const std::size_t queries = problem_.query_length;
  kernel_.run_block(problem_, head_of(task / pieces_),
                    {piece * queries / pieces_, (piece + 1) * queries / pieces_}, space);
}

void Schedule::run_chunk(std::size_t task, Workspace& space) {
  const std::size_t row = task / chunks_;
  const std::size_t begin = task % chunks_ * kKeysPerChunk;
  const Range keys = {begin, std::min(begin + kKeysPerChunk, problem_.key_length)};
  rows_[task] =
      kernel_.run_row(problem_, head_of(row / problem_.query_length), row % problem_.query_length,
                      keys, sums_.data() + task * problem_.value_dim, space);
}

void Schedule::merge(std::size_t task, Workspace& space) {
  const std::size_t first = task * chunks_;
  kernel_.merge_rows(problem_, head_of(task / problem_.query_length), task % problem_.query_length,
                     std::span(rows_).subspan(first, chunks_),
                     sums_.data() + first * problem_.value_dim, space);
}

}  // namespace self_attention::cpu
