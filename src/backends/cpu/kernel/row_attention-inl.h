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

/// The sums of four vectors' lanes.
HWY_INLINE void SumFour(Floats v0, Floats v1, Floats v2, Floats v3, float* to) {
  const F32 d;
  to[0] = hn::GetLane(hn::SumOfLanes(d, v0));
  to[1] = hn::GetLane(hn::SumOfLanes(d, v1));
  to[2] = hn::GetLane(hn::SumOfLanes(d, v2));
  to[3] = hn::GetLane(hn::SumOfLanes(d, v3));
}

template <typename T>
class RowTask : public HeadTask {
 public:
  using HeadTask::HeadTask;

  /// One query over keys: unnormalised sums of values in `result`.
  RowResult Run(std::size_t query, Range keys, float* result) {
    const auto [from, end] = keys;
    RowResult row;
    const std::size_t limit =
        problem_.causal ? std::min(query + 1, problem_.key_length) : problem_.key_length;
    const std::size_t visible = std::clamp(limit, from, end) - from;
    row.skipped = visible < end - from;
    const std::size_t width = problem_.value_dim;
    std::fill_n(result, width, 0.0F);
    const std::size_t count = Select(query, from, visible);
    row.skipped = row.skipped || count < visible;
    if (count == 0) return row;
    row.keeps = true;
    float* scores = space_.scores.data();
    Score(query, count, scores);
    RowState state{-FLT_MAX, 0, 1};
    ToWeights({scores, count, count, nullptr, factor_}, state);
    row.max = state.max;
    row.sum = state.sum;
    AddValues(count, scores, result);
    return row;
  }

 private:
  /// Lists the rows of the keys that are kept.
  std::size_t Select(std::size_t query, std::size_t from, std::size_t count) {
    space_.kept_keys.reserve(kKeysPerChunk + 4);
    space_.scores.reserve(kKeysPerChunk + 2 * kPanel);
    space_.queries.reserve(hwy::RoundUpTo(problem_.head_dim, kLanes));
    std::uint32_t* kept = space_.kept_keys.data();
    if (!mask_.exists()) {
      for (std::size_t i = 0; i < count; ++i) kept[i] = static_cast<std::uint32_t>(from + i);
      return count;
    }
    std::uint8_t buffer[kKeysPerChunk];
    const std::uint8_t* keep = mask_.row(query, from, count, buffer);
    std::size_t kept_count = 0;
    for (std::size_t i = 0; i < count; ++i) {
      kept[kept_count] = static_cast<std::uint32_t>(from + i);
      kept_count += keep[i] != 0;
    }
    return kept_count;
  }

  const T* Key(std::size_t i) const { return Row(keys_, space_.kept_keys[i]); }
  const T* Value(std::size_t i) const { return Row(values_, space_.kept_keys[i]); }
  static const T* Row(const HeadRows& rows, std::size_t row) {
    return reinterpret_cast<const T*>(rows.data) + static_cast<std::int64_t>(row) * rows.row_stride;
  }

  void Score(std::size_t query, std::size_t count, float* scores) {
    const F32 d;
    const std::size_t depth = problem_.head_dim;
    float* q = space_.queries.data();
    const float* from = queries_.get(query, depth, q);
    for (std::size_t k = 0; k < depth; ++k) q[k] = from[k];
    std::fill(q + depth, q + hwy::RoundUpTo(depth, kLanes), 0.0F);
    const std::size_t whole = depth / kLanes * kLanes;
    for (std::size_t i = 0; i < count; i += 4) {
      const std::size_t last = count - 1;
      const T* keys[4] = {Key(i), Key(std::min(i + 1, last)), Key(std::min(i + 2, last)),
                          Key(std::min(i + 3, last))};
      Floats sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      for (std::size_t k = 0; k < whole; k += kLanes) {
        const Floats factor = hn::Load(d, q + k);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[j] = hn::MulAdd(factor, LoadWide(keys[j] + k), sums[j]);
      }
      if (whole < depth) {
        const Floats factor = hn::Load(d, q + whole);
        for (int j = 0; j < 4; ++j) {
          sums[j] = hn::MulAdd(factor, LoadWideTail(keys[j] + whole, depth - whole), sums[j]);
        }
      }
      SumFour(sums[0], sums[1], sums[2], sums[3], scores + i);
    }
  }

  void AddValues(std::size_t count, const float* weights, float* result) {
    std::size_t column = 0;
    const std::size_t width = problem_.value_dim;
    while (column + kLanes <= width) {
      const std::size_t vectors = std::min<std::size_t>((width - column) / kLanes, 8);
      switch (vectors) {
        case 8:
          AddColumns<8>(count, weights, column, result);
          column += 8 * kLanes;
          break;
        case 7:
        case 6:
        case 5:
        case 4:
          AddColumns<4>(count, weights, column, result);
          column += 4 * kLanes;
          break;
        case 3:
        case 2:
          AddColumns<2>(count, weights, column, result);
          column += 2 * kLanes;
          break;
        default:
          AddColumns<1>(count, weights, column, result);
          column += kLanes;
      }
    }
    if (column == width) return;
    const F32 d;
    Floats sum = hn::Zero(d);
    for (std::size_t i = 0; i < count; ++i) {
      sum =
          hn::MulAdd(hn::Set(d, weights[i]), LoadWideTail(Value(i) + column, width - column), sum);
    }
    HWY_ALIGN float tail[kLanes];
    hn::Store(sum, d, tail);
    std::copy_n(tail, width - column, result + column);
  }

  template <std::size_t kVectors>
  void AddColumns(std::size_t count, const float* weights, std::size_t column, float* result) {
    const F32 d;
    Floats sums[kVectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
    for (std::size_t i = 0; i < count; ++i) {
      const T* value = Value(i) + column;
      const Floats weight = hn::Set(d, weights[i]);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[v] = hn::MulAdd(weight, LoadWide(value + v * kLanes), sums[v]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, result + column + v * kLanes);
  }
};

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
