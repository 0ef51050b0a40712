#include "backends/cpu/kernel/schedule.h"

#include <algorithm>
#include <cstdlib>

namespace self_attention::cpu {
namespace {

/// Packing keys and values again for fewer queries would cost too much.
constexpr std::size_t kSmallestPiece = 192;
constexpr std::size_t kLargestPiece = 1024;

/// Whether the heads of a row lie beside one another.
bool has_heads_inside(const ConstView& view) {
  return std::abs(view.strides[1]) < std::abs(view.strides[2]);
}

bool has_rows(const ConstView& view, std::size_t columns) {
  return columns == 1 || view.strides[3] == 1;
}

}  // namespace

Schedule::Schedule(const AttentionProblem& problem, const Kernel& kernel, std::size_t threads)
    : problem_(problem), kernel_(kernel), head_count_(problem.batch * problem.heads) {
  const std::size_t queries = problem.query_length;
  // Some tasks more than threads, so that none waits long for the last one.
  const std::size_t wanted = threads > 1 ? 4 * threads : 1;
  // Gradients compute the scores again, and their last bits must be those of the maxima and sums.
  const bool kept_for_gradients = problem.row_maxima != nullptr;
  if (queries <= kFewQueries && !kept_for_gradients && problem.key_length > 0 &&
      has_rows(problem.key, problem.head_dim) && has_rows(problem.value, problem.value_dim)) {
    chunks_ = (problem.key_length + kKeysPerChunk - 1) / kKeysPerChunk;
    rows_.resize(head_count_ * queries * chunks_);
    const bool shares = problem.mask.data == nullptr || problem.mask.strides[1] == 0;
    const std::size_t rows = problem.batch * queries * chunks_;
    pieces_ = shares && has_heads_inside(problem.key) && has_heads_inside(problem.value)
                  ? std::min(problem.heads, (wanted + rows - 1) / rows)
                  : problem.heads;
    sums_.resize(rows_.size() * problem.value_dim);
    return;
  }
  const std::size_t most = std::max<std::size_t>(queries / kSmallestPiece, 1);
  const std::size_t least = (queries + kLargestPiece - 1) / kLargestPiece;
  pieces_ = std::max(
      least, std::min(most, (wanted + head_count_ - 1) / std::max<std::size_t>(head_count_, 1)));
}

std::size_t Schedule::tasks(std::size_t round) const {
  if (!by_row()) return round == 0 ? head_count_ * pieces_ : 0;
  const std::size_t queries = problem_.batch * problem_.query_length;
  return queries * (round == 0 ? chunks_ * pieces_ : problem_.heads);
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
  kernel_.run_block(problem_, head_of(task / pieces_),
                    even_part(task % pieces_, pieces_, problem_.query_length), space);
}

void Schedule::run_chunk(std::size_t task, Workspace& space) {
  const std::size_t chunk = task / pieces_ % chunks_;
  const std::size_t query = task / pieces_ / chunks_ % problem_.query_length;
  const std::size_t batch = task / pieces_ / chunks_ / problem_.query_length;
  const Range part = even_part(task % pieces_, pieces_, problem_.heads);
  const HeadRange heads = {batch, part.begin, part.end};
  const std::size_t begin = chunk * kKeysPerChunk;
  const Range keys = {begin, std::min(begin + kKeysPerChunk, problem_.key_length)};
  const std::size_t step = problem_.query_length * chunks_;
  const std::size_t first = (batch * problem_.heads + heads.begin) * step + query * chunks_ + chunk;
  kernel_.run_row(problem_, heads, query, keys,
                  {&rows_[first], sums_.data() + first * problem_.value_dim, step}, space);
}

void Schedule::merge(std::size_t task, Workspace& space) {
  const std::size_t first = task * chunks_;
  kernel_.merge_rows(problem_, head_of(task / problem_.query_length), task % problem_.query_length,
                     std::span(rows_).subspan(first, chunks_),
                     sums_.data() + first * problem_.value_dim, space);
}

GradientSchedule::GradientSchedule(const GradientProblem& problem, const Kernel& kernel)
    : problem_(problem), kernel_(kernel), head_count_(problem.call.batch * problem.call.heads) {
  // Enough tasks for the threads there may be; keys that are looked at together stay together.
  constexpr std::size_t kTasks = 16;
  const std::size_t most = std::max<std::size_t>(problem.call.key_length / kKeysPerChunk, 1);
  const std::size_t heads = std::max<std::size_t>(head_count_, 1);
  pieces_ = std::min((kTasks + heads - 1) / heads, most);
  if (pieces_ > 1 && problem.grad_query.data != nullptr) {
    grad_query_.reserve(pieces_ * head_count_ * problem.call.query_length * problem.call.head_dim);
  }
}

std::size_t GradientSchedule::tasks(std::size_t round) const {
  if (round == 0) return head_count_ * pieces_;
  return grad_query_.bytes() > 0 ? head_count_ : 0;
}

void GradientSchedule::run(std::size_t round, std::size_t task, Workspace& space) {
  const std::size_t rows = problem_.call.query_length * problem_.call.head_dim;
  const std::size_t step = head_count_ * rows;
  const std::size_t index = task % head_count_;
  const Head head = {index / problem_.call.heads, index % problem_.call.heads};
  float* sums = grad_query_.bytes() > 0 ? grad_query_.data() + index * rows : nullptr;
  if (round == 1) {
    kernel_.merge_gradients(problem_, head, {0, pieces_, sums}, step, space);
    return;
  }
  const std::size_t piece = task / head_count_;
  if (sums != nullptr) sums += piece * step;
  kernel_.run_gradients(problem_, head, {piece, pieces_, sums}, space);
}

}  // namespace self_attention::cpu
