// Per-target include: the gradients of attention, by blocks.

#if defined(SELF_ATTENTION_ATTENTION_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_ATTENTION_GRADIENTS_INL_H_
#undef SELF_ATTENTION_ATTENTION_GRADIENTS_INL_H_
#else
#define SELF_ATTENTION_ATTENTION_GRADIENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "backends/cpu/kernel/block_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// What the row of a query needs to make weights of its scores again, and gradients of the scores.
struct RowGradient {
  float max;
  float inverse_sum;
  float delta;
};

/// Scores to weights, dropped where there is `dropout`, and the gradients of those, which lie
/// `offset` behind them, to the gradients of the scores before scaling.
HWY_INLINE void ToScoreGradients(const RowScores& row, const RowGradient& saved, float factor,
                                 float scale, std::ptrdiff_t offset, const RowDropout* dropout) {
  const F32 d;
  const Floats max = hn::Set(d, saved.max);
  const Floats factors = hn::Set(d, factor);
  const Floats inverse = hn::Set(d, saved.inverse_sum);
  const Floats delta = hn::Set(d, saved.delta);
  const Floats scales = hn::Set(d, scale);
  for (std::size_t i = 0; i < row.width; i += kLanes) {
    float* scores = row.scores + i;
    if (i >= row.count) {
      hn::Store(hn::Zero(d), d, scores);
      hn::Store(hn::Zero(d), d, scores + offset);
      continue;
    }
    const std::size_t rest = row.count - i;
    auto kept = hn::FirstN(d, rest);
    if (row.keep != nullptr) kept = hn::AndNot(MaskedLanes(row.keep + i, rest), kept);
    const Floats power = hn::Mul(hn::Sub(hn::Load(d, scores), max), factors);
    const Floats weight = hn::IfThenElseZero(kept, hn::Mul(Exp2(d, power), inverse));
    Floats dropped = weight;
    Floats upstream = hn::Load(d, scores + offset);
    if (dropout != nullptr) {
      const Floats factors_of_keys = DropoutFactors(*dropout, i);
      dropped = hn::Mul(dropped, factors_of_keys);
      upstream = hn::Mul(upstream, factors_of_keys);
    }
    const Floats gradient = hn::Mul(weight, hn::Sub(upstream, delta));
    hn::Store(dropped, d, scores);
    hn::Store(hn::IfThenElseZero(kept, hn::Mul(gradient, scales)), d, scores + offset);
  }
}

/// The gradients of one head's queries, and of some of its keys and values.
///
/// For each block of keys, blocks of queries compute their weights again; what they add to the
/// block's keys and values stays in the cache meanwhile.
class GradientTask : public BlockTask {
 public:
  GradientTask(const GradientProblem& problem, Head head, Workspace& space)
      : BlockTask(problem.call, head, space),
        wanted_(problem),
        head_(head),
        results_(problem.output, problem.call.row_kind(), head.batch, head.head),
        grad_results_(problem.grad_output, problem.call.row_kind(), head.batch, head.head),
        maxima_(problem.call.row_maxima + first_row_),
        sums_(problem.call.row_sums + first_row_),
        head_width_(hwy::RoundUpTo(problem.call.head_dim, kPanel)) {}

  void Run(const GradientPiece& piece) {
    count_ = problem_.query_length;
    Prepare();
    const std::size_t blocks = (key_count_ + kKeyBlock - 1) / kKeyBlock;
    const Range part = even_part(piece.index, piece.count, blocks);
    const std::size_t first = part.begin * kKeyBlock;
    const std::size_t next = part.end * kKeyBlock;
    const std::size_t end = std::min(next, key_count_);
    for (std::size_t from = first; from < end; from += kKeyBlock) {
      RunKeys(from, std::min(kKeyBlock, end - from));
    }
    ClearKeys(piece.index == 0 ? 0 : Row(first),
              piece.index + 1 == piece.count ? problem_.key_length : Row(next));
    if (wanted_.grad_query.data == nullptr) return;
    const float* sums = space_.grad_queries.data();
    for (std::size_t row = 0; row < count_; ++row, sums += head_width_) {
      if (piece.grad_query != nullptr) {
        CopyRow(sums, problem_.head_dim, piece.grad_query + row * problem_.head_dim);
      } else {
        StoreGradient(sums, problem_.head_dim, wanted_.grad_query, row);
      }
    }
  }

  void MergeQueries(const GradientPiece& pieces, std::size_t step) {
    const std::size_t depth = problem_.head_dim;
    float* sums = pieces.grad_query;
    for (std::size_t row = 0; row < problem_.query_length; ++row, sums += depth) {
      for (std::size_t piece = 1; piece < pieces.count; ++piece) {
        const float* more = sums + piece * step;
        for (std::size_t column = 0; column < depth; ++column) sums[column] += more[column];
      }
      StoreGradient(sums, depth, wanted_.grad_query, row);
    }
  }

 private:
  /// Where a row's scores are, the gradients of its weights are this far behind.
  static constexpr std::ptrdiff_t kOffset = kQueryBlock * kScoreStride;

  void Prepare() {
    space_.keys.reserve(kKeyBlock * problem_.head_dim);
    space_.key_rows.reserve(kKeyBlock * head_width_);
    space_.value_columns.reserve(kKeyBlock * problem_.value_dim);
    space_.rows.reserve((kPanel + 1) * std::max(problem_.head_dim, problem_.value_dim) +
                        2 * problem_.value_dim);
    space_.queries.reserve(kQueryBlock * head_width_);
    space_.grad_outputs.reserve(kQueryBlock * output_width_);
    space_.scores.reserve(2 * kOffset);
    space_.grad_keys.reserve(kKeyBlock * head_width_);
    space_.grad_values.reserve(kKeyBlock * output_width_);
    space_.grad_queries.reserve(count_ * head_width_);
    std::fill_n(space_.grad_queries.data(), count_ * head_width_, 0.0F);
    space_.row_flags.reserve(count_);
    std::fill_n(space_.row_flags.data(), count_, std::uint8_t{0});
    ReadRows();
    ReadMask();
    uniform_ = !problem_.causal && !row_mask_ && !full_mask_;
  }

  /// Each row's delta, and whether there are rows whose weights are not those of kept keys alone.
  void ReadRows() {
    space_.deltas.reserve(count_);
    space_.mean.reserve(output_width_);
    std::fill_n(space_.mean.data(), output_width_, 0.0F);
    const std::size_t width = problem_.value_dim;
    float* buffer = space_.rows.data();
    for (std::size_t row = 0; row < count_; ++row) {
      const float* result = results_.get(row, width, buffer);
      const float* gradient = grad_results_.get(row, width, buffer + width);
      space_.deltas[row] = DotProduct(result, gradient, width);
      if (sums_[row] > 0 || sums_[row] != sums_[row]) continue;
      // These need every key.
      lists_keys_ = false;
      odd_rows_ = odd_rows_ || drops() || sums_[row] < 0;
      if (drops() || sums_[row] < 0) continue;
      const float share = 1.0F / static_cast<float>(problem_.key_length);
      for (std::size_t column = 0; column < width; ++column) {
        space_.mean[column] += share * gradient[column];
      }
    }
  }

  /// The row in the inputs of a packed key.
  std::size_t Row(std::size_t key) const {
    if (kept_ == nullptr) return std::min(key, problem_.key_length);
    return key < key_count_ ? kept_[key] : problem_.key_length;
  }

  void RunKeys(std::size_t from, std::size_t keys) {
    const PackedRows which{kept_, from, keys};
    PackKeys(keys_, which, problem_.head_dim, space_.rows.data(), space_.keys.data());
    PackKeys(values_, which, problem_.value_dim, space_.rows.data(), space_.value_columns.data());
    PackValues(keys_, which, problem_.head_dim, space_.rows.data(), space_.key_rows.data());
    std::fill_n(space_.grad_keys.data(), keys * head_width_, 0.0F);
    float* grad_values = space_.grad_values.data();
    for (std::size_t key = 0; key < keys; ++key) {
      std::copy_n(space_.mean.data(), output_width_, grad_values + key * output_width_);
    }
    const std::size_t blocks = (count_ + kQueryBlock - 1) / kQueryBlock;
    for (std::size_t block = 0; block < blocks; ++block) {
      const Range rows = even_part(block, blocks, count_);
      RunQueries(rows.begin, rows.end - rows.begin, from, keys);
    }
    if (odd_rows_) {
      for (std::size_t row = 0; row < count_; ++row) {
        if (sums_[row] < 0) AddExactly(row, from, keys);
        if (sums_[row] == 0 && drops()) AddDroppedMean(row, from, keys);
      }
    }
    for (std::size_t key = 0; key < keys; ++key) {
      const std::size_t row = which.row(key);
      StoreGradient(space_.grad_keys.data() + key * head_width_, problem_.head_dim,
                    wanted_.grad_key, row);
      StoreGradient(grad_values + key * output_width_, problem_.value_dim, wanted_.grad_value, row);
    }
  }

  void RunQueries(std::size_t row, std::size_t rows, std::size_t from, std::size_t keys) {
    if (Limit(row + rows - 1) <= from) return;
    groups_ = RowGroups(rows);
    RowScores scores[kQueryBlock];
    if (!CountKeys(row, rows, from, keys, scores)) return;
    WidenRows({scores, rows}, keys);
    const float* queries = CopyRows(queries_, problem_.head_dim, {row, rows}, space_.queries);
    const float* gradients =
        CopyRows(grad_results_, problem_.value_dim, {row, rows}, space_.grad_outputs);
    MultiplyKeys({queries, head_width_, problem_.head_dim}, space_.keys.data(), scores);
    MultiplyKeys({gradients, output_width_, problem_.value_dim}, space_.value_columns.data(),
                 scores, kOffset);
    for (std::size_t i = 0; i < rows; ++i) {
      const float sum = sums_[row + i];
      if (sum <= 0) scores[i].count = 0;
      RowDropout dropout = {};
      if (drops()) dropout = PackedDropout(row + i, from);
      ToScoreGradients(scores[i], {maxima_[row + i], 1.0F / sum, space_.deltas[row + i]}, factor_,
                       problem_.scale, kOffset, drops() ? &dropout : nullptr);
    }
    if (wanted_.grad_value.data != nullptr) {
      AddByKeys({scores, rows}, 0, gradients, output_width_, space_.grad_values.data());
    }
    if (wanted_.grad_key.data != nullptr) {
      AddByKeys({scores, rows}, kOffset, queries, head_width_, space_.grad_keys.data());
    }
    if (wanted_.grad_query.data != nullptr) AddToQueries(scores, row, keys);
  }

  /// Rows that are multiplied together are of one width, in whole blocks of a transposed product's
  /// rows, and none is narrower than the one before it: where they do not grow of themselves, as
  /// under causality, all are as wide as the widest.
  void WidenRows(std::span<RowScores> scores, std::size_t keys) const {
    if (!std::ranges::is_sorted(scores, {}, &RowScores::count)) {
      const std::size_t width = std::ranges::max(scores, {}, &RowScores::count).count;
      for (RowScores& row : scores) row.width = width;
    } else {
      WidenGroups(scores.data());
    }
    for (RowScores& row : scores) {
      row.width = std::min(hwy::RoundUpTo(row.width, kBlockRows), keys);
    }
  }

  /// Rows as floats, filled up with zeros to whole panels.
  static const float* CopyRows(const HeadRows& from, std::size_t width, Range rows,
                               AlignedArray<float>& copies) {
    const std::size_t stride = hwy::RoundUpTo(width, kPanel);
    float* to = copies.data();
    for (std::size_t i = 0; i < rows.end; ++i, to += stride) {
      const float* row = from.get(rows.begin + i, width, to);
      if (row != to) CopyRow(row, width, to);
      std::fill(to + width, to + stride, 0.0F);
    }
    return copies.data();
  }

  /// sums (keys × width) += transposed weights, or what is `offset` behind them, times rows.
  void AddByKeys(std::span<const RowScores> scores, std::ptrdiff_t offset, const float* rows,
                 std::size_t width, float* sums) const {
    const std::size_t keys = scores.back().width;
    for (std::size_t column = 0; column < width; column += kPanel) {
      std::size_t first = 0;
      for (std::size_t key = 0; key < keys; key += kBlockRows) {
        while (scores[first].width <= key) ++first;
        Multiply<true>(std::min(kBlockRows, keys - key), kPanel,
                       {.a = scores[first].scores + offset + key,
                        .a_stride = kScoreStride,
                        .b = rows + first * width + column,
                        .b_stride = width,
                        .depth = scores.size() - first,
                        .c = sums + key * width + column,
                        .c_stride = width,
                        .row_scale = kOnes});
      }
    }
  }

  void AddToQueries(const RowScores* scores, std::size_t row, std::size_t keys) {
    for (std::size_t column = 0; column < problem_.head_dim; column += kPanel) {
      for (std::size_t group = 0; group < groups_.count(); ++group) {
        const std::size_t start = groups_.start(group);
        Multiply(groups_.rows(group), kPanel,
                 {.a = scores[start].scores + kOffset,
                  .a_stride = kScoreStride,
                  .b = space_.key_rows.data() + column * keys,
                  .b_stride = kPanel,
                  .depth = scores[start].width,
                  .c = space_.grad_queries.data() + (row + start) * head_width_ + column,
                  .c_stride = head_width_,
                  .row_scale = kOnes});
      }
    }
  }

  /// One query whose masked keys have weights too. Rare, so plain.
  void AddExactly(std::size_t row, std::size_t from, std::size_t keys) {
    const std::size_t depth = problem_.head_dim;
    const std::size_t width = problem_.value_dim;
    float* buffer = space_.rows.data() + 2 * depth;
    for (std::size_t i = 0; i < keys; ++i) {
      const std::size_t key = from + i;
      const float weight = Exp2((ExactScore(row, key) - maxima_[row]) * factor_) / -sums_[row];
      const float factor = drops() ? DropoutFactor(row, key) : 1.0F;
      const float* gradient = grad_results_.get(row, width, buffer);
      const float* value = values_.get(key, width, buffer + width);
      float* grad_value = space_.grad_values.data() + i * output_width_;
      float product = 0;
      for (std::size_t column = 0; column < width; ++column) {
        grad_value[column] += weight * factor * gradient[column];
        product += factor * gradient[column] * value[column];
      }
      if (!Keeps(row, key)) continue;
      const float score = weight * (product - space_.deltas[row]) * problem_.scale;
      const float* q = queries_.get(row, depth, space_.rows.data());
      const float* k = keys_.get(key, depth, space_.rows.data() + depth);
      float* grad_key = space_.grad_keys.data() + i * head_width_;
      float* grad_query = space_.grad_queries.data() + row * head_width_;
      for (std::size_t column = 0; column < depth; ++column) {
        grad_key[column] += score * q[column];
        grad_query[column] += score * k[column];
      }
    }
  }

  /// One query that keeps no key, under dropout.
  void AddDroppedMean(std::size_t row, std::size_t from, std::size_t keys) {
    const std::size_t width = problem_.value_dim;
    const float* gradient = grad_results_.get(row, width, space_.rows.data());
    for (std::size_t i = 0; i < keys; ++i) {
      const float share = DropoutFactor(row, from + i) / static_cast<float>(problem_.key_length);
      float* grad_value = space_.grad_values.data() + i * output_width_;
      for (std::size_t column = 0; column < width; ++column) {
        grad_value[column] += share * gradient[column];
      }
    }
  }

  /// Zeros for the keys in [from, end) that are not packed.
  void ClearKeys(std::size_t from, std::size_t end) {
    if (kept_ == nullptr) return;
    space_.grad_keys.reserve(std::max(head_width_, output_width_));
    float* zeros = space_.grad_keys.data();
    std::fill_n(zeros, std::max(head_width_, output_width_), 0.0F);
    const std::uint32_t* next = std::lower_bound(kept_, kept_ + key_count_, from);
    for (std::size_t row = from; row < end; ++row) {
      if (next != kept_ + key_count_ && *next == row) {
        ++next;
        continue;
      }
      StoreGradient(zeros, problem_.head_dim, wanted_.grad_key, row);
      StoreGradient(zeros, problem_.value_dim, wanted_.grad_value, row);
    }
  }

  void StoreGradient(const float* from, std::size_t count, const OutputView& to,
                     std::size_t row) const {
    if (to.data == nullptr) return;
    const std::int64_t element = element_bytes(problem_.kind);
    const std::int64_t offset = static_cast<std::int64_t>(head_.batch) * to.strides[0] +
                                static_cast<std::int64_t>(head_.head) * to.strides[1] +
                                static_cast<std::int64_t>(row) * to.strides[2];
    StoreRow(from, 1.0F, count, problem_.kind, static_cast<char*>(to.data) + element * offset);
  }

  static constexpr float kOnes[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  static_assert(sizeof(kOnes) / sizeof(float) >= kBlockRows);

  const GradientProblem& wanted_;
  Head head_;
  HeadRows results_;
  HeadRows grad_results_;
  const float* maxima_;
  const float* sums_;
  std::size_t head_width_;
  bool odd_rows_ = false;  // that are computed one by one
};

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
