// Per-target include: attention of few queries against many keys, in one pass over memory.

#if defined(SELF_ATTENTION_ROW_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_ROW_ATTENTION_INL_H_
#undef SELF_ATTENTION_ROW_ATTENTION_INL_H_
#else
#define SELF_ATTENTION_ROW_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>

#include "backends/cpu/kernel/block_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// Rows of keys and values that are read side by side: memory serves several streams faster than
/// one.
inline constexpr std::size_t kStreams = 4;

/// The sums of the lanes of each of kStreams vectors.
HWY_INLINE void SumLanes(const Floats* v, float* sums) {
  for (std::size_t i = 0; i < kStreams; i += kFolded) {
    const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
    hn::StoreU(FoldLanes(v + i, add), Folded(), sums + i);
  }
}

/// One query of some heads that share a mask, over a chunk of keys.
///
/// Heads run inside of keys: where they lie side by side in memory, as modules give them, whole
/// rows of all heads are then read in their order, twice as fast as one head after the other.
template <typename T>
class RowTask : public HeadTask {
 public:
  RowTask(const AttentionProblem& problem, const HeadRange& heads, Workspace& space)
      : HeadTask(problem, {heads.batch, heads.begin}, space),
        heads_(heads.end - heads.begin),
        query_width_(hwy::RoundUpTo(problem.head_dim, kLanes)),
        key_step_(problem.key.strides[1]),
        value_step_(problem.value.strides[1]) {
    space.kept_keys.reserve(kKeysPerChunk + kStreams + kLanes);
    space.scores.reserve(heads_ * kScoreWidth);
    space.queries.reserve(heads_ * query_width_);
    space.outputs.reserve(heads_ * problem.value_dim);
  }

  void Run(std::size_t query, Range keys, const RowResults& results) {
    const std::size_t limit =
        problem_.causal ? std::min(query + 1, problem_.key_length) : problem_.key_length;
    const std::size_t visible = std::clamp(limit, keys.begin, keys.end) - keys.begin;
    count_ = Select(query, keys.begin, visible);
    stream_ = (count_ + kStreams - 1) / kStreams;
    for (std::size_t head = 0; head < heads_; ++head) {
      RowResult& row = results.rows[head * results.step];
      row = RowResult();
      row.keeps = count_ > 0;
      row.skipped = count_ < keys.end - keys.begin;
    }
    const std::size_t width = problem_.value_dim;
    std::fill_n(Sums(0), heads_ * width, 0.0F);
    if (count_ > 0) AddKeys(query, results);
    for (std::size_t head = 0; head < heads_; ++head) {
      std::copy_n(Sums(head), width, results.sums + head * results.step * width);
    }
  }

 private:
  static constexpr std::size_t kScoreWidth = kKeysPerChunk + 2 * kPanel;

  float* Scores(std::size_t head) { return space_.scores.data() + head * kScoreWidth; }
  /// Side by side: where the results go they may lie a multiple of a page apart, in few of the
  /// first cache's sets.
  float* Sums(std::size_t head) { return space_.outputs.data() + head * problem_.value_dim; }

  void AddKeys(std::size_t query, const RowResults& results) {
    ReadQueries(query);
    for (std::size_t i = 0; i < stream_; ++i) Score(i);
    for (std::size_t head = 0; head < heads_; ++head) {
      const std::size_t width = hwy::RoundUpTo(kStreams * stream_, kLanes);
      const RowScores row = {Scores(head), count_, width, nullptr};
      float max[kFolded] = {-FLT_MAX};
      float sum[kFolded] = {};
      ToWeights(&row, 1, {max, sum, nullptr}, factor_);
      if (drops()) {
        const std::size_t of_head = head * problem_.query_length + query;
        DropWeights(row, DropoutOf(of_head, space_.kept_keys.data(), 0));
      }
      results.rows[head * results.step].max = max[0];
      results.rows[head * results.step].sum = sum[0];
    }
    for (std::size_t i = 0; i < stream_; ++i) AddValues(i);
  }

  /// Lists the rows of the keys that are kept; repeats the last where streams need more.
  std::size_t Select(std::size_t query, std::size_t from, std::size_t count) {
    std::uint32_t* kept = space_.kept_keys.data();
    std::uint8_t buffer[kKeysPerChunk];
    const std::uint8_t* keep =
        mask_.exists() && count > 0 ? mask_.row(query, from, count, buffer) : nullptr;
    std::size_t kept_count = 0;
    for (std::size_t i = 0; i < count; ++i) {
      kept[kept_count] = static_cast<std::uint32_t>(from + i);
      kept_count += keep == nullptr || keep[i] != 0;
    }
    for (std::size_t i = 0; kept_count > 0 && i < kStreams; ++i) {
      kept[kept_count + i] = kept[kept_count - 1];
    }
    return kept_count;
  }

  void ReadQueries(std::size_t query) {
    const std::size_t depth = problem_.head_dim;
    HeadRows rows = queries_;
    for (std::size_t head = 0; head < heads_; ++head) {
      float* to = space_.queries.data() + head * query_width_;
      const float* from = rows.get(query, depth, to);
      if (from != to) std::copy_n(from, depth, to);
      std::fill(to + depth, to + query_width_, 0.0F);
      rows.data += problem_.query.strides[1] * rows.bytes();
    }
  }

  /// The i-th row of every stream.
  void FindRows(const HeadRows& rows, std::size_t i, const T** found) const {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::size_t row = space_.kept_keys[std::min(stream * stream_ + i, count_)];
      found[stream] =
          reinterpret_cast<const T*>(rows.data) + static_cast<std::int64_t>(row) * rows.row_stride;
    }
  }

  void Score(std::size_t i) {
    const F32 d;
    const std::size_t depth = problem_.head_dim;
    const std::size_t whole = depth / kLanes * kLanes;
    const T* keys[kStreams];
    FindRows(keys_, i, keys);
    for (std::size_t head = 0; head < heads_; ++head) {
      const float* query = space_.queries.data() + head * query_width_;
      // Single variables stay in registers, where those of an array would be stored in each round.
      Floats sum0 = hn::Zero(d);
      Floats sum1 = hn::Zero(d);
      Floats sum2 = hn::Zero(d);
      Floats sum3 = hn::Zero(d);
      for (std::size_t k = 0; k < whole; k += kLanes) {
        const Floats factor = hn::Load(d, query + k);
        sum0 = hn::MulAdd(factor, LoadWide(keys[0] + k), sum0);
        sum1 = hn::MulAdd(factor, LoadWide(keys[1] + k), sum1);
        sum2 = hn::MulAdd(factor, LoadWide(keys[2] + k), sum2);
        sum3 = hn::MulAdd(factor, LoadWide(keys[3] + k), sum3);
      }
      if (whole < depth) {
        const Floats factor = hn::Load(d, query + whole);
        const std::size_t rest = depth - whole;
        sum0 = hn::MulAdd(factor, LoadWideTail(keys[0] + whole, rest), sum0);
        sum1 = hn::MulAdd(factor, LoadWideTail(keys[1] + whole, rest), sum1);
        sum2 = hn::MulAdd(factor, LoadWideTail(keys[2] + whole, rest), sum2);
        sum3 = hn::MulAdd(factor, LoadWideTail(keys[3] + whole, rest), sum3);
      }
      static_assert(kStreams == 4);
      const Floats sums[kStreams] = {sum0, sum1, sum2, sum3};
      float scores[kStreams];
      SumLanes(sums, scores);
      for (std::size_t j = 0; j < kStreams; ++j) {
        Scores(head)[j * stream_ + i] = scores[j];
        keys[j] += key_step_;
      }
    }
  }

  void AddValues(std::size_t i) {
    const F32 d;
    const std::size_t width = problem_.value_dim;
    const std::size_t whole = width / kLanes * kLanes;
    const T* values[kStreams];
    FindRows(values_, i, values);
    for (std::size_t head = 0; head < heads_; ++head) {
      float* result = Sums(head);
      Floats weights[kStreams];
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kStreams; ++j) {
        weights[j] = hn::Set(d, Scores(head)[j * stream_ + i]);
      }
      for (std::size_t column = 0; column < whole; column += kLanes) {
        Floats sum = hn::LoadU(d, result + column);
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kStreams; ++j) {
          sum = hn::MulAdd(weights[j], LoadWide(values[j] + column), sum);
        }
        hn::StoreU(sum, d, result + column);
      }
      if (whole < width) {
        Floats sum = LoadWideTail(result + whole, width - whole);
        for (std::size_t j = 0; j < kStreams; ++j) {
          sum = hn::MulAdd(weights[j], LoadWideTail(values[j] + whole, width - whole), sum);
        }
        HWY_ALIGN float tail[kLanes];
        hn::Store(sum, d, tail);
        std::copy_n(tail, width - whole, result + whole);
      }
      for (const T*& value : values) value += value_step_;
    }
  }

  std::size_t heads_;
  std::size_t query_width_;
  std::int64_t key_step_;  // from head to head
  std::int64_t value_step_;
  std::size_t count_ = 0;   // keys that are kept
  std::size_t stream_ = 0;  // keys of a stream
};

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
