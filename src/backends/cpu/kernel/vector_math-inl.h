// Per-target include: rows as float32, 2^x, rounding stores.

#if defined(SELF_ATTENTION_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_VECTOR_MATH_INL_H_
#undef SELF_ATTENTION_VECTOR_MATH_INL_H_
#else
#define SELF_ATTENTION_VECTOR_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "backends/cpu/kernel/attention_problem.h"
#include "backends/cpu/kernel/float16.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using Floats = hn::Vec<F32>;
inline constexpr std::size_t kLanes = hn::MaxLanes(F32());

/// 2^x for x ≤ 0, with a relative error below 1.7e-7. Exactly 1 for 0, so that a maximum that stays
/// changes nothing; exactly 0 from −127 down; NaN for NaN.
///
/// x = n + f with n the nearest integer; 2^f by a polynomial (a minimax fit of degree 5 over
/// [−½, ½] that is exact at 0, relative error 9.2e-8), 2^n through the exponent's bits. Half the
/// cost of Highway's Exp, which also scales by log2 e: here that factor is in the scores already.
template <class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  // x is second: where one operand is NaN, Max returns the second.
  const auto clamped = hn::Max(hn::Set(d, -127.0F), x);
  // Adding 1.5·2^23 rounds to an integer and leaves it in the low bits: here with the exponent's
  // bias, 127.
  const auto shifter = hn::Set(d, 12583039.0F);
  const auto shifted = hn::Add(clamped, shifter);
  const auto f = hn::Sub(clamped, hn::Sub(shifted, shifter));
  auto p = hn::Set(d, 0x1.5bba14p-10F);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3cea88p-7F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

HWY_INLINE float Exp2(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(Exp2(d, hn::Set(d, x)));
}

/// Vectors whose lanes are folded together, and a vector of their results.
inline constexpr std::size_t kFolded = HWY_MIN(kLanes, 4);
using Folded = hn::CappedTag<float, kFolded>;

#if HWY_TARGET != HWY_SCALAR
/// `op` over the blocks of four lanes of a vector.
template <class D, class Op>
HWY_INLINE hn::Vec<Folded> FoldBlocks(D d, hn::Vec<D> v, const Op& op) {
  if constexpr (hn::MaxLanes(d) <= kFolded) {
    return v;
  } else {
    const hn::Half<D> half;
    return FoldBlocks(half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), op);
  }
}
#endif

/// `op` over the lanes of each of kFolded vectors, always in the same order.
template <class Op>
HWY_INLINE hn::Vec<Folded> FoldLanes(const Floats* v, [[maybe_unused]] const Op& op) {
#if HWY_TARGET == HWY_SCALAR
  return v[0];
#else
  const F32 d;
  const hn::Repartition<double, F32> pairs;
  // In every block of four lanes: two lanes, then four, of all four vectors in turn.
  const auto fold = [&](Floats a, Floats b) HWY_ATTR {
    return op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const auto low = hn::BitCast(pairs, fold(v[0], v[1]));
  const auto high = hn::BitCast(pairs, fold(v[2], v[3]));
  return FoldBlocks(d,
                    op(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                       hn::BitCast(d, hn::InterleaveUpper(pairs, low, high))),
                    op);
#endif
}

/// `count` (less than a vector) elements without touching what lies behind them.
template <typename T>
HWY_INLINE void CopyTail(const T* from, std::size_t count, T* to) {
  std::memset(to, 0, kLanes * sizeof(T));
  std::memcpy(to, from, count * sizeof(T));
}

HWY_INLINE Floats LoadWide(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE Floats LoadWide(const hwy::float16_t* from) {
  return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), from));
}
HWY_INLINE Floats LoadWide(const hwy::bfloat16_t* from) {
  const hn::Rebind<std::uint16_t, F32> d16;
  const auto bits =
      hn::PromoteTo(U32(), hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
}

template <typename T>
HWY_INLINE Floats LoadWideTail(const T* from, std::size_t count) {
  HWY_ALIGN T tail[kLanes];
  CopyTail(from, count, tail);
  return LoadWide(tail);
}

template <typename T>
HWY_NOINLINE void WidenRow(const T* from, std::int64_t stride, std::size_t count, float* to) {
  if (stride != 1) {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = hn::GetLane(LoadWideTail(from + static_cast<std::int64_t>(i) * stride, 1));
    }
    return;
  }
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(LoadWide(from + i), F32(), to + i);
  if (i < count) {
    HWY_ALIGN float tail[kLanes];
    hn::Store(LoadWideTail(from + i, count - i), F32(), tail);
    std::memcpy(to + i, tail, (count - i) * sizeof(float));
  }
}

HWY_INLINE void CopyRow(const float* from, std::size_t count, float* to) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(F32(), from + i), F32(), to + i);
  for (; i < count; ++i) to[i] = from[i];
}

HWY_INLINE float DotProduct(const float* a, const float* b, std::size_t count) {
  const F32 d;
  Floats sum0 = hn::Zero(d);
  Floats sum1 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes), sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// Rows of one head of an input.
struct HeadRows {
  HeadRows(const ConstView& view, ElementKind kind_, std::size_t batch, std::size_t head)
      : kind(kind_), row_stride(view.strides[2]), stride(view.strides[3]) {
    const std::int64_t offset = static_cast<std::int64_t>(batch) * view.strides[0] +
                                static_cast<std::int64_t>(head) * view.strides[1];
    data = static_cast<const char*>(view.data) + offset * bytes();
  }

  std::int64_t bytes() const { return element_bytes(kind); }

  /// The row as floats: where it lies, or in `buffer`.
  const float* get(std::size_t row, std::size_t count, float* buffer) const {
    const char* from = data + static_cast<std::int64_t>(row) * row_stride * bytes();
    switch (kind) {
      case ElementKind::kFloat32:
        if (stride == 1) return reinterpret_cast<const float*>(from);
        WidenRow(reinterpret_cast<const float*>(from), stride, count, buffer);
        break;
      case ElementKind::kBFloat16:
        WidenRow(reinterpret_cast<const hwy::bfloat16_t*>(from), stride, count, buffer);
        break;
      case ElementKind::kFloat16:
        WidenRow(reinterpret_cast<const hwy::float16_t*>(from), stride, count, buffer);
        break;
    }
    return buffer;
  }

  ElementKind kind;
  const char* data;
  std::int64_t row_stride;
  std::int64_t stride;
};

/// Rounds to nearest, ties to even; NaN stays NaN.
HWY_INLINE void StoreBFloat16(Floats x, std::uint16_t* to) {
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000));
  const auto nan = hn::RebindMask(du, hn::IsNaN(x));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  const hn::Rebind<std::uint16_t, F32> d16;
  // Signed to unsigned saturates above 65535, which a number of 16 bits never is.
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<U32>(), high)), d16, to);
}

/// factor · a row of results, rounded to the output's type.
HWY_INLINE void StoreRow(const float* from, float factor, std::size_t count, ElementKind kind,
                         char* to) {
  const F32 d;
  const Floats factors = hn::Set(d, factor);
  if (kind == ElementKind::kFloat32) {
    auto* out = reinterpret_cast<float*>(to);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), factors), d, out + i);
    }
    for (; i < count; ++i) out[i] = from[i] * factor;
    return;
  }
  auto* out = reinterpret_cast<std::uint16_t*>(to);
  HWY_ALIGN std::uint16_t halves[kLanes];
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t rest = HWY_MIN(kLanes, count - i);
    const Floats x =
        hn::Mul(rest == kLanes ? LoadWide(from + i) : LoadWideTail(from + i, rest), factors);
    if (kind == ElementKind::kBFloat16) {
      StoreBFloat16(x, halves);
    } else {
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR
      for (std::size_t lane = 0; lane < rest; ++lane)
        halves[lane] = float16_bits(from[i + lane] * factor);
#else
      const hn::Rebind<hwy::float16_t, F32> d16;
      hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(halves));
#endif
    }
    std::memcpy(out + i, halves, rest * sizeof(std::uint16_t));
  }
}

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
