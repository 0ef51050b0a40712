// Per-target include: the register-blocked product, and the packing of its right operand.

#if defined(SELF_ATTENTION_BLOCK_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_BLOCK_PRODUCT_INL_H_
#undef SELF_ATTENTION_BLOCK_PRODUCT_INL_H_
#else
#define SELF_ATTENTION_BLOCK_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/kernel/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// Columns of a packed panel: two vectors, so that each broadcast of the left operand serves two.
inline constexpr std::size_t kPanel = 2 * kLanes;
/// Rows of a register block: with the panel's two vectors they fill the registers there are.
inline constexpr std::size_t kBlockRows = kLanes == 16 ? 12 : kLanes > 1 ? 6 : 4;

/// c (rows × columns) = result_scale · (row_scale · c + a (rows × depth) · b (depth × columns));
/// without row_scale what was in c does not count, without result_scale it is one. Where the
/// product is added, it is first summed by itself. A transposed a is (depth × rows). Each sum runs
/// over the depth in order, so that a row's result does not depend on the rows beside it.
struct Product {
  const float* a;
  std::size_t a_stride;
  const float* b;
  std::size_t b_stride;
  std::size_t depth;
  float* c;
  std::size_t c_stride;
  const float* row_scale = nullptr;
  const float* result_scale = nullptr;
  bool added = false;  // to what is in c; without the scales
};

/// Keeps the compiler from making more pointers of this one.
HWY_INLINE void HidePointer(const float*& pointer) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(pointer));
#endif
}

template <std::size_t kRowCount, std::size_t kVectors, bool kTransposed>
HWY_NOINLINE void Multiply(const Product& product) {
  const F32 d;
  Floats sums[kRowCount][kVectors];
#pragma GCC unroll 16
  for (std::size_t row = 0; row < kRowCount; ++row) {
#pragma GCC unroll 2
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[row][v] = hn::Zero(d);
      if (product.row_scale != nullptr) {
        sums[row][v] = hn::Mul(hn::LoadU(d, product.c + row * product.c_stride + v * kLanes),
                               hn::Set(d, product.row_scale[row]));
      }
    }
  }
  // A pointer to every fourth row: one to each would be more than there are registers for.
  constexpr std::size_t kPointers = kTransposed ? 1 : (kRowCount + 3) / 4;
  const float* a[kPointers];
  for (std::size_t i = 0; i < kPointers; ++i) a[i] = product.a + 4 * i * product.a_stride;
  const float* HWY_RESTRICT b = product.b;
  const std::size_t a_stride = product.a_stride;
  const std::size_t b_stride = product.b_stride;
  for (std::size_t k = 0; k < product.depth; ++k) {
    Floats columns[kVectors];
#pragma GCC unroll 2
    for (std::size_t v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRowCount; ++row) {
      const Floats factor = hn::Set(d, kTransposed ? a[0][row] : a[row / 4][row % 4 * a_stride]);
#pragma GCC unroll 2
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[row][v] = hn::MulAdd(factor, columns[v], sums[row][v]);
      }
    }
    b += b_stride;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kPointers; ++i) {
      a[i] += kTransposed ? a_stride : 1;
      HidePointer(a[i]);
    }
  }
  if (product.added) {
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRowCount; ++row) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < kVectors; ++v) {
        const float* c = product.c + row * product.c_stride + v * kLanes;
        sums[row][v] = hn::Add(hn::LoadU(d, c), sums[row][v]);
      }
    }
  }
  if (product.result_scale != nullptr) {
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRowCount; ++row) {
      const Floats scale = hn::Set(d, product.result_scale[row]);
#pragma GCC unroll 2
      for (std::size_t v = 0; v < kVectors; ++v) sums[row][v] = hn::Mul(sums[row][v], scale);
    }
  }
#pragma GCC unroll 16
  for (std::size_t row = 0; row < kRowCount; ++row) {
#pragma GCC unroll 2
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[row][v], d, product.c + row * product.c_stride + v * kLanes);
    }
  }
}

template <std::size_t kRowCount, std::size_t kVectors, bool kTransposed>
HWY_INLINE void MultiplyRows(std::size_t rows, const Product& product) {
  if constexpr (kRowCount > 0) {
    if (rows == kRowCount) return Multiply<kRowCount, kVectors, kTransposed>(product);
    MultiplyRows<kRowCount - 1, kVectors, kTransposed>(rows, product);
  }
}

/// The product with 1 to kBlockRows rows and 1 to kPanel columns; whole vectors are written.
template <bool kTransposed = false>
HWY_INLINE void Multiply(std::size_t rows, std::size_t columns, const Product& product) {
  if (columns > kLanes) {
    MultiplyRows<kBlockRows, 2, kTransposed>(rows, product);
  } else {
    MultiplyRows<kBlockRows, 1, kTransposed>(rows, product);
  }
}

/// The same product without scales, as a sum of sums over short pieces of the depth: a third of the
/// rounding error, for more time.
HWY_INLINE void MultiplyInPieces(std::size_t rows, std::size_t columns, Product product) {
  constexpr std::size_t kPiece = 16;
  for (std::size_t rest = product.depth;; product.added = true) {
    product.depth = std::min(kPiece, rest);
    Multiply(rows, columns, product);
    rest -= product.depth;
    if (rest == 0) return;
    product.a += kPiece;
    product.b += kPiece * product.b_stride;
  }
}

/// Which rows of an input are packed: `count` from `first` on in the list `kept`, or in the input
/// itself where there is no list.
struct PackedRows {
  const std::uint32_t* kept;
  std::size_t first;
  std::size_t count;

  std::size_t row(std::size_t i) const { return kept != nullptr ? kept[first + i] : first + i; }
};

#if HWY_TARGET != HWY_SCALAR
/// Blocks of four numbers from every fourth row.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* const* rows, std::size_t k) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return hn::LoadU(d, rows[0] + k);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, rows + hn::MaxLanes(half), k),
                       LoadBlocks(half, rows, k));
  }
}

/// Four numbers from each of a vector's width of rows, as so many columns of four of a panel's
/// rows.
template <class D>
HWY_INLINE void TransposeFourColumns(D d, const float* const* rows, std::size_t k, float* to) {
  const hn::Repartition<double, D> pairs;
  const auto r0 = LoadBlocks(d, rows, k);
  const auto r1 = LoadBlocks(d, rows + 1, k);
  const auto r2 = LoadBlocks(d, rows + 2, k);
  const auto r3 = LoadBlocks(d, rows + 3, k);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
  to += k * kPanel;
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + kPanel);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * kPanel);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * kPanel);
}
#endif

/// Keys as the right operand of query · keyᵀ: panels of kPanel keys, each (head_dim × kPanel). The
/// last is filled up with zeros to whole vectors. `buffer` holds kPanel + 1 rows.
HWY_INLINE void PackKeys(const HeadRows& keys, const PackedRows& which, std::size_t head_dim,
                         float* buffer, float* to) {
  float* zeros = buffer + kPanel * head_dim;
  std::memset(zeros, 0, head_dim * sizeof(float));
  const float* rows[kPanel];
  for (std::size_t first = 0; first < which.count; first += kPanel, to += kPanel * head_dim) {
    const std::size_t count = std::min(which.count - first, kPanel);
    const std::size_t width = count > kLanes ? kPanel : kLanes;
    for (std::size_t i = 0; i < width; ++i) {
      rows[i] = i < count ? keys.get(which.row(first + i), head_dim, buffer + i * head_dim) : zeros;
    }
    std::size_t k = 0;
#if HWY_TARGET != HWY_SCALAR
    // Eight rows at a time: rows of heads side by side lie in few of the cache's sets.
    const hn::CappedTag<float, 8> d;
    constexpr std::size_t kRows = hn::MaxLanes(d);
    for (std::size_t i = 0; i < width; i += kRows) {
      for (k = 0; k + 4 <= head_dim; k += 4) TransposeFourColumns(d, rows + i, k, to + i);
    }
#endif
    for (; k < head_dim; ++k) {
      for (std::size_t i = 0; i < width; ++i) to[k * kPanel + i] = rows[i][k];
    }
  }
}

/// Values as the right operand of weights · value: panels of kPanel columns, each
/// (count × kPanel), filled up with zeros. `buffer` holds one row.
HWY_INLINE void PackValues(const HeadRows& values, const PackedRows& which, std::size_t value_dim,
                           float* buffer, float* to) {
  const F32 d;
  for (std::size_t i = 0; i < which.count; ++i) {
    const float* row = values.get(which.row(i), value_dim, buffer);
    float* out = to + i * kPanel;
    std::size_t column = 0;
    for (; column + kPanel <= value_dim; column += kPanel, out += which.count * kPanel) {
      hn::Store(hn::LoadU(d, row + column), d, out);
      hn::Store(hn::LoadU(d, row + column + kLanes), d, out + kLanes);
    }
    if (column < value_dim) {
      std::memcpy(out, row + column, (value_dim - column) * sizeof(float));
      std::memset(out + (value_dim - column), 0, (kPanel - (value_dim - column)) * sizeof(float));
    }
  }
}

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
