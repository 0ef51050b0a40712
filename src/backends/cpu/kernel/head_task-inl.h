// Per-target include: what attention of one head needs, whichever way its queries are computed.

#if defined(SELF_ATTENTION_HEAD_TASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_HEAD_TASK_INL_H_
#undef SELF_ATTENTION_HEAD_TASK_INL_H_
#else
#define SELF_ATTENTION_HEAD_TASK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "backends/cpu/kernel/dropout-inl.h"
#include "backends/cpu/kernel/keep_mask.h"
#include "backends/cpu/kernel/kernel.h"
#include "backends/cpu/kernel/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// Keys of a block of scores.
inline constexpr std::size_t kKeyBlock = 256;

/// Inputs, mask and output of one head, and the end of every row.
class HeadTask {
 public:
  HeadTask(const AttentionProblem& problem, Head head, Workspace& space)
      : problem_(problem),
        space_(space),
        queries_(problem.query, problem.row_kind(), head.batch, head.head),
        keys_(problem.key, problem.kind, head.batch, head.head),
        values_(problem.value, problem.kind, head.batch, head.head),
        mask_(problem.mask, head.batch, head.head),
        factor_(problem.scale * 1.44269504088896340736F),
        first_row_((head.batch * problem.heads + head.head) * problem.query_length) {
    const std::int64_t element = element_bytes(problem.row_kind());
    output_ = static_cast<char*>(problem.output) +
              element * (static_cast<std::int64_t>(head.batch) * problem.output_strides[0] +
                         static_cast<std::int64_t>(head.head) * problem.output_strides[1]);
    output_row_bytes_ = element * problem.output_strides[2];
    space_.rows.reserve(2 * problem.head_dim + problem.value_dim);
  }

  /// Normalises and writes a row.
  void Finish(std::size_t query, const RowResult& row, float* result) {
    if (!FinishOddRow(query, row, result)) Store(result, 1.0F / row.sum, query);
  }

  /// Writes a row that is not the sum over its kept keys, and says whether it is one. Masked keys
  /// that were left out have weight zero as long as a kept score is far enough above theirs.
  bool FinishOddRow(std::size_t query, const RowResult& row, float* buffer) {
    if (!row.keeps) {
      Store(drops() ? DroppedMean(query) : Mean(), 1.0F, query);
      SaveSums(query, -FLT_MAX, 0.0F);
      return true;
    }
    if (!row.skipped || row.max > kMaskedScore + 150.0F / factor_) {
      SaveSums(query, row.max, row.sum);
      return false;
    }
    RunExactly(query, buffer);
    Store(buffer, 1.0F, query);
    return true;
  }

  /// Adds up the results of consecutive keys, each with value_dim sums, and finishes the row.
  void Merge(std::size_t query, std::span<const RowResult> rows, float* sums) {
    const std::size_t width = problem_.value_dim;
    RowResult total = rows[0];
    for (std::size_t i = 1; i < rows.size(); ++i) {
      const RowResult& next = rows[i];
      total.skipped = total.skipped || next.skipped;
      if (!next.keeps) continue;
      const float max = std::max(total.max, next.max);
      const float old_scale = total.keeps ? Exp2((total.max - max) * factor_) : 0.0F;
      const float scale = Exp2((next.max - max) * factor_);
      const float* from = sums + i * width;
      for (std::size_t column = 0; column < width; ++column) {
        sums[column] = sums[column] * old_scale + from[column] * scale;
      }
      total.sum = total.sum * old_scale + next.sum * scale;
      total.max = max;
      total.keeps = true;
    }
    Finish(query, total, sums);
  }

 protected:
  float* OutputRow(std::size_t query) const {
    return reinterpret_cast<float*>(output_ + static_cast<std::int64_t>(query) * output_row_bytes_);
  }

  void Store(const float* result, float factor, std::size_t query) {
    StoreRow(result, factor, problem_.value_dim, problem_.row_kind(),
             output_ + static_cast<std::int64_t>(query) * output_row_bytes_);
  }

  /// The mean of all values, in which a query attends that keeps no key; zeros where there are
  /// none.
  const float* Mean() {
    if (has_mean_) return space_.mean.data();
    has_mean_ = true;
    const std::size_t width = problem_.value_dim;
    space_.mean.reserve(2 * width);
    float* total = space_.mean.data();
    float* sum = total + width;
    std::fill_n(total, width, 0.0F);
    for (std::size_t from = 0; from < problem_.key_length; from += kKeyBlock) {
      std::fill_n(sum, width, 0.0F);
      const std::size_t end = std::min(from + kKeyBlock, problem_.key_length);
      for (std::size_t key = from; key < end; ++key) {
        const float* value = values_.get(key, width, space_.rows.data());
        for (std::size_t column = 0; column < width; ++column) sum[column] += value[column];
      }
      for (std::size_t column = 0; column < width; ++column) total[column] += sum[column];
    }
    if (problem_.key_length == 0) return total;
    const float inverse = 1.0F / static_cast<float>(problem_.key_length);
    for (std::size_t column = 0; column < width; ++column) total[column] *= inverse;
    return total;
  }

  /// The same of one query under dropout. Rare, so plain.
  const float* DroppedMean(std::size_t query) {
    const std::size_t width = problem_.value_dim;
    space_.mean.reserve(2 * width);
    float* total = space_.mean.data();
    std::fill_n(total, width, 0.0F);
    for (std::size_t key = 0; key < problem_.key_length; ++key) {
      const float share = DropoutFactor(query, key) / static_cast<float>(problem_.key_length);
      const float* value = values_.get(key, width, space_.rows.data());
      for (std::size_t column = 0; column < width; ++column) total[column] += share * value[column];
    }
    return total;
  }

  /// One query over every key, masked ones with their score: where real scores are so low that
  /// masked ones have weights. Rare, so plain.
  void RunExactly(std::size_t query, float* result) {
    const std::size_t width = problem_.value_dim;
    float max = -FLT_MAX;
    for (std::size_t key = 0; key < problem_.key_length; ++key) {
      max = std::fmax(max, ExactScore(query, key));
    }
    std::fill_n(result, width, 0.0F);
    float sum = 0;
    for (std::size_t key = 0; key < problem_.key_length; ++key) {
      const float weight = Exp2((ExactScore(query, key) - max) * factor_);
      sum += weight;
      const float dropped = drops() ? weight * DropoutFactor(query, key) : weight;
      const float* value = values_.get(key, width, space_.rows.data());
      for (std::size_t column = 0; column < width; ++column) {
        result[column] += dropped * value[column];
      }
    }
    for (std::size_t column = 0; column < width; ++column) result[column] /= sum;
    SaveSums(query, max, -sum);
  }

  /// For the gradients: a sum of zero where the query keeps no key, a negative one where masked
  /// keys have weights too.
  void SaveSums(std::size_t query, float max, float sum) {
    if (problem_.row_maxima == nullptr) return;
    problem_.row_maxima[first_row_ + query] = max;
    problem_.row_sums[first_row_ + query] = sum;
  }

  bool drops() const { return problem_.dropout.threshold != 0; }

  /// For weights of a query and of the keys that are listed, or of those from `first` on.
  RowDropout DropoutOf(std::size_t query, const std::uint32_t* keys, std::size_t first) const {
    const Dropout& dropout = problem_.dropout;
    return {row_seeds(dropout.seed, first_row_ + query), dropout.threshold, dropout.scale, keys,
            static_cast<std::uint32_t>(first)};
  }

  float DropoutFactor(std::size_t query, std::size_t key) const {
    const Dropout& dropout = problem_.dropout;
    return dropout_factor(dropout, row_seeds(dropout.seed, first_row_ + query),
                          static_cast<std::uint32_t>(key));
  }

  bool Keeps(std::size_t query, std::size_t key) const {
    std::uint8_t keep = 1;
    if (mask_.exists()) keep = *mask_.row(query, key, 1, &keep);
    return keep != 0 && !(problem_.causal && key > query);
  }

  float ExactScore(std::size_t query, std::size_t key) {
    if (!Keeps(query, key)) return kMaskedScore;
    const std::size_t depth = problem_.head_dim;
    const float* q = queries_.get(query, depth, space_.rows.data());
    const float* k = keys_.get(key, depth, space_.rows.data() + depth);
    float score = 0;
    for (std::size_t i = 0; i < depth; ++i) score += q[i] * k[i];
    return score;
  }

  const AttentionProblem& problem_;
  Workspace& space_;
  HeadRows queries_;
  HeadRows keys_;
  HeadRows values_;
  HeadMask mask_;
  std::int64_t output_row_bytes_;
  float factor_;           // scale · log2 e: of scores, to make them powers of two
  std::size_t first_row_;  // of this head among all heads' rows

 private:
  char* output_;
  bool has_mean_ = false;
};

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
