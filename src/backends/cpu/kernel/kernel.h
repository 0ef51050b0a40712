#pragma once

#include <cfloat>
#include <cstddef>
#include <span>
#include <string_view>

#include "backends/cpu/kernel/attention_problem.h"
#include "backends/cpu/kernel/workspace.h"

namespace self_attention::cpu {

/// Up to here each query reads keys and values itself, which costs less than packing them.
inline constexpr std::size_t kFewQueries = 4;

/// Keys that one query is computed over at once when it has its own path.
inline constexpr std::size_t kKeysPerChunk = 512;

/// A query's unnormalised result over some keys.
struct RowResult {
  float max = -FLT_MAX;  // of its scores
  float sum = 0;         // of its weights
  bool keeps = false;    // whether it keeps a key
  bool skipped = false;  // whether masked keys were left out, or may have weights
};

/// Which head of which sequence.
struct Head {
  std::size_t batch;
  std::size_t head;
};

/// Some heads of a sequence.
struct HeadRange {
  std::size_t batch;
  std::size_t begin;
  std::size_t end;
};

/// Where the results of heads go: `step` results from one head's to the next one's, value_dim sums
/// each.
struct RowResults {
  RowResult* rows;
  float* sums;
  std::size_t step;
};

/// Which part of a head's keys, and where the sums for its queries go, (query_length, head_dim)
/// each; nullptr where there is one part.
struct GradientPiece {
  std::size_t index;
  std::size_t count;
  float* grad_query;
};

/// A half-open range.
struct Range {
  std::size_t begin;
  std::size_t end;
};

/// One of `count` parts of so many, as even as can be.
constexpr Range even_part(std::size_t index, std::size_t count, std::size_t total) {
  return {index * total / count, (index + 1) * total / count};
}

/// The kernel compiled for one instruction set. All compute the same, but may round differently.
struct Kernel {
  std::string_view name;  ///< "avx512", "avx2", "sse4" or "scalar"

  /// Whole rows of the output for the queries in `queries`.
  void (*run_block)(const AttentionProblem& problem, Head head, Range queries, Workspace& space);
  /// One query of heads that share a mask over the keys in `keys`, at most kKeysPerChunk.
  void (*run_row)(const AttentionProblem& problem, const HeadRange& heads, std::size_t query,
                  Range keys, const RowResults& results, Workspace& space);
  /// The query's output from those results in the order of the keys. Overwrites the first sums.
  void (*merge_rows)(const AttentionProblem& problem, Head head, std::size_t query,
                     std::span<const RowResult> rows, float* sums, Workspace& space);
  /// The gradients of some of a head's keys and values, and their share of its queries'.
  void (*run_gradients)(const GradientProblem& problem, Head head, const GradientPiece& piece,
                        Workspace& space);
  /// The gradients of a head's queries from the sums of all pieces, which lie `step` apart, in
  /// their order. Overwrites the first.
  void (*merge_gradients)(const GradientProblem& problem, Head head, const GradientPiece& pieces,
                          std::size_t step, Workspace& space);
};

/// The kernels that this machine can run, the fastest first.
std::span<const Kernel* const> kernels();

}  // namespace self_attention::cpu
