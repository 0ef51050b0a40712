// Per-target include: dropout of weights.

#if defined(SELF_ATTENTION_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_DROPOUT_INL_H_
#undef SELF_ATTENTION_DROPOUT_INL_H_
#else
#define SELF_ATTENTION_DROPOUT_INL_H_
#endif

#include <hwy/highway.h>

#include "backends/cpu/kernel/dropout.h"
#include "backends/cpu/kernel/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// The dropout of a row's consecutive weights.
struct RowDropout {
  RowSeeds seeds;
  std::uint32_t threshold;
  float scale;
  const std::uint32_t* keys;  // theirs, readable to a vector's end; or nullptr:
  std::uint32_t first;        // those from here on
};

/// dropout_factor() of the weights from the i-th on.
HWY_INLINE Floats DropoutFactors(const RowDropout& row, std::size_t i) {
  const U32 du;
  const auto keys = row.keys != nullptr ? hn::LoadU(du, row.keys + i)
                                        : hn::Iota(du, static_cast<std::uint32_t>(row.first + i));
  auto h = hn::Xor(keys, hn::Set(du, row.seeds.first));
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(du, kHashFirst));
  h = hn::Add(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(du, row.seeds.second));
  h = hn::Mul(h, hn::Set(du, kHashSecond));
  h = hn::Xor(h, hn::ShiftRight<16>(h));
  const auto dropped = hn::RebindMask(F32(), hn::Lt(h, hn::Set(du, row.threshold)));
  return hn::IfThenZeroElse(dropped, hn::Set(F32(), row.scale));
}

HWY_INLINE void DropWeights(const RowScores& row, const RowDropout& dropout) {
  const F32 d;
  for (std::size_t i = 0; i < row.count; i += kLanes) {
    const Floats weights = hn::Load(d, row.scores + i);
    hn::Store(hn::Mul(weights, DropoutFactors(dropout, i)), d, row.scores + i);
  }
}

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
