// Per-target include: scores to weights, by the online softmax (Milakov and Gimelshein 2018).

#if defined(SELF_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_SOFTMAX_INL_H_
#undef SELF_ATTENTION_SOFTMAX_INL_H_
#else
#define SELF_ATTENTION_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "backends/cpu/kernel/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// What a masked score becomes.
inline constexpr float kMaskedScore = -1e20F;

/// One row of scores, which become weights.
struct RowScores {
  float* scores;
  std::size_t count;         // keys that the row may see
  std::size_t width;         // weights are zero from count to here
  const std::uint8_t* keep;  // or nullptr
};

/// Of consecutive rows; each has room for kFolded numbers.
struct RowStates {
  float* max;      // of the scores so far
  float* sum;      // of the weights so far
  float* rescale;  // out: of what was summed before these scores; nullptr: nothing was
};

/// Lanes whose byte of a mask is zero; of fewer than a vector's width no more are read.
HWY_INLINE hn::Mask<F32> MaskedLanes(const std::uint8_t* keep, std::size_t count) {
  const U32 du;
  const hn::Rebind<std::uint8_t, F32> d8;
  HWY_ALIGN std::uint8_t tail[kLanes];
  if (count < kLanes) {
    CopyTail(keep, count, tail);
    keep = tail;
  }
  const auto bytes = hn::PromoteTo(du, hn::LoadU(d8, keep));
  return hn::RebindMask(F32(), hn::Eq(bytes, hn::Zero(du)));
}

/// Scores that the mask leaves out become kMaskedScore; the lanes' maximum is the row's.
HWY_INLINE Floats MaskAndMax(const RowScores& row) {
  const F32 d;
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const Floats masked = hn::Set(d, kMaskedScore);
  Floats max0 = lowest;
  Floats max1 = lowest;
  std::size_t i = 0;
  if (row.keep == nullptr) {
    for (; i + 2 * kLanes <= row.count; i += 2 * kLanes) {
      max0 = hn::Max(max0, hn::Load(d, row.scores + i));
      max1 = hn::Max(max1, hn::Load(d, row.scores + i + kLanes));
    }
  }
  for (; i < row.count; i += kLanes) {
    const std::size_t rest = row.count - i;
    Floats score = hn::Load(d, row.scores + i);
    if (row.keep != nullptr) {
      score = hn::IfThenElse(MaskedLanes(row.keep + i, rest), masked, score);
    }
    if (rest < kLanes) score = hn::IfThenElse(hn::FirstN(d, rest), score, lowest);
    if (row.keep != nullptr || rest < kLanes) hn::Store(score, d, row.scores + i);
    max0 = hn::Max(max0, score);
  }
  return hn::Max(max0, max1);
}

/// Scores to weights 2^(factor · (score − max)); the lanes' sum is the row's.
HWY_INLINE Floats Weights(const RowScores& row, float max, float factor) {
  const F32 d;
  const Floats offset = hn::Set(d, max);
  const Floats factors = hn::Set(d, factor);
  const auto weight = [&](std::size_t i) HWY_ATTR {
    return Exp2(d, hn::Mul(hn::Sub(hn::Load(d, row.scores + i), offset), factors));
  };
  Floats sum0 = hn::Zero(d);
  Floats sum1 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * kLanes <= row.count; i += 2 * kLanes) {
    const Floats w0 = weight(i);
    const Floats w1 = weight(i + kLanes);
    hn::Store(w0, d, row.scores + i);
    hn::Store(w1, d, row.scores + i + kLanes);
    sum0 = hn::Add(sum0, w0);
    sum1 = hn::Add(sum1, w1);
  }
  for (; i < row.count; i += kLanes) {
    Floats w = weight(i);
    if (row.count - i < kLanes) w = hn::IfThenElseZero(hn::FirstN(d, row.count - i), w);
    hn::Store(w, d, row.scores + i);
    sum0 = hn::Add(sum0, w);
  }
  for (; i < row.width; i += kLanes) hn::Store(hn::Zero(d), d, row.scores + i);
  return hn::Add(sum0, sum1);
}

/// Up to kFolded rows at once: what a row's own maximum and sum take is mostly waiting. A row's
/// result does not depend on the rows beside it.
HWY_INLINE void ToWeights(const RowScores* rows, std::size_t count, const RowStates& states,
                          float factor) {
  const F32 d;
  const Folded df;
  Floats lanes[kFolded];
#pragma GCC unroll 4
  for (std::size_t row = 0; row < kFolded; ++row) {
    lanes[row] = row < count ? MaskAndMax(rows[row]) : hn::Zero(d);
  }
  const auto old_max = hn::LoadU(df, states.max);
  const auto max =
      hn::Max(old_max, FoldLanes(lanes, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }));
  HWY_ALIGN float maxima[kFolded];
  hn::Store(max, df, maxima);
#pragma GCC unroll 4
  for (std::size_t row = 0; row < kFolded; ++row) {
    lanes[row] = row < count ? Weights(rows[row], maxima[row], factor) : hn::Zero(d);
  }
  const auto new_sum = FoldLanes(lanes, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
  const auto first = hn::FirstN(df, count);
  hn::BlendedStore(max, first, df, states.max);
  if (states.rescale == nullptr) {
    hn::BlendedStore(new_sum, first, df, states.sum);
    return;
  }
  const auto old_sum = hn::LoadU(df, states.sum);
  // Nothing to rescale yet, or nothing to rescale by.
  const auto stays = hn::Or(hn::Eq(old_sum, hn::Zero(df)), hn::Eq(old_max, max));
  const auto rescale = hn::IfThenElse(
      stays, hn::Set(df, 1.0F), Exp2(df, hn::Mul(hn::Sub(old_max, max), hn::Set(df, factor))));
  hn::BlendedStore(hn::Add(hn::Mul(old_sum, rescale), new_sum), first, df, states.sum);
  hn::BlendedStore(rescale, first, df, states.rescale);
}

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
