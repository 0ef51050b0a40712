// Per-target include: attention of many queries, by blocks.

#if defined(SELF_ATTENTION_BLOCK_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_BLOCK_ATTENTION_INL_H_
#undef SELF_ATTENTION_BLOCK_ATTENTION_INL_H_
#else
#define SELF_ATTENTION_BLOCK_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "backends/cpu/kernel/block_product-inl.h"
#include "backends/cpu/kernel/head_task-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// Queries of a block of scores, a multiple of every kBlockRows.
inline constexpr std::size_t kQueryBlock = 48;
/// Not a power of two, so that the rows of a block do not share the cache's sets.
inline constexpr std::size_t kScoreStride = kKeyBlock + 16;

/// What is known of a query's row.
enum RowFlag : std::uint8_t {
  kRowKeeps = 1,    // it keeps a key
  kRowSkipped = 2,  // masked keys of it were left out
  kRowStarted = 4,  // its block's results have begun
};

/// The weights of one row in one block.
struct RowWeights {
  float* scores;             // in: scores; out: weights
  std::size_t count;         // keys that the row may see
  std::size_t width;         // weights are zero from count to here
  const std::uint8_t* keep;  // or nullptr
  float factor;              // of scores, to make them powers of two
};

struct RowState {
  float max;
  float sum;
  float rescale;  // of what was summed before this block
};

/// Scores that the mask leaves out become kMaskedScore; returns the largest score and `max`.
HWY_INLINE float MaskAndMax(const RowWeights& row, float max) {
  const F32 d;
  const U32 du;
  const hn::Rebind<std::uint8_t, F32> d8;
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const Floats masked = hn::Set(d, kMaskedScore);
  Floats max0 = hn::Set(d, max);
  Floats max1 = max0;
  const auto masked_at = [&](Floats score, const std::uint8_t* keep) HWY_ATTR {
    const auto bytes = hn::PromoteTo(du, hn::LoadU(d8, keep));
    return hn::IfThenElse(hn::RebindMask(d, hn::Eq(bytes, hn::Zero(du))), masked, score);
  };
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
      HWY_ALIGN std::uint8_t tail[kLanes];
      const std::uint8_t* keep = row.keep + i;
      if (rest < kLanes) {
        CopyTail(keep, rest, tail);
        keep = tail;
      }
      score = masked_at(score, keep);
    }
    if (rest < kLanes) score = hn::IfThenElse(hn::FirstN(d, rest), score, lowest);
    if (row.keep != nullptr || rest < kLanes) hn::Store(score, d, row.scores + i);
    max0 = hn::Max(max0, score);
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
}

/// Scores to weights 2^(factor · (score − max)), by the online softmax: Milakov and Gimelshein
/// 2018.
HWY_INLINE void ToWeights(const RowWeights& row, RowState& state) {
  const F32 d;
  const float max = MaskAndMax(row, state.max);
  const Floats factor = hn::Set(d, row.factor);
  const Floats offset = hn::Set(d, max);
  Floats sum0 = hn::Zero(d);
  Floats sum1 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * kLanes <= row.count; i += 2 * kLanes) {
    const Floats w0 = Exp2(hn::Mul(hn::Sub(hn::Load(d, row.scores + i), offset), factor));
    const Floats w1 = Exp2(hn::Mul(hn::Sub(hn::Load(d, row.scores + i + kLanes), offset), factor));
    hn::Store(w0, d, row.scores + i);
    hn::Store(w1, d, row.scores + i + kLanes);
    sum0 = hn::Add(sum0, w0);
    sum1 = hn::Add(sum1, w1);
  }
  for (; i < row.count; i += kLanes) {
    Floats w = Exp2(hn::Mul(hn::Sub(hn::Load(d, row.scores + i), offset), factor));
    if (row.count - i < kLanes) w = hn::IfThenElseZero(hn::FirstN(d, row.count - i), w);
    hn::Store(w, d, row.scores + i);
    sum0 = hn::Add(sum0, w);
  }
  for (; i < row.width; i += kLanes) hn::Store(hn::Zero(d), d, row.scores + i);
  // Nothing to rescale yet, or nothing to rescale by.
  const bool stays = state.sum == 0 || state.max == max;
  state.rescale = stays ? 1.0F : Exp2((state.max - max) * row.factor);
  state.sum = state.sum * state.rescale + hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  state.max = max;
}

/// Some queries of one head.
///
/// Keys and values are packed part by part, each part small enough to stay in the second-level
/// cache; for each, blocks of queries run over blocks of keys: scores, weights, sums of values. The
/// key blocks' borders follow from the shape and the mask alone, so results do not depend on how
/// queries are split between tasks.
class BlockTask : public HeadTask {
 public:
  BlockTask(const AttentionProblem& problem, Head head, Workspace& space)
      : HeadTask(problem, head, space), output_width_(hwy::RoundUpTo(problem.value_dim, kPanel)) {}

  void Run(Range queries) {
    first_ = queries.begin;
    count_ = queries.end - queries.begin;
    Prepare();
    const std::size_t part = KeysPerPart();
    for (std::size_t from = 0; from < key_count_; from += part) {
      if (from >= Limit(queries.end - 1)) break;
      const std::size_t keys = std::min(part, key_count_ - from);
      Pack(from, keys);
      // As even as can be: few rows take almost as long as many.
      const std::size_t blocks = (count_ + kQueryBlock - 1) / kQueryBlock;
      for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t row = block * count_ / blocks;
        RunQueries(row, (block + 1) * count_ / blocks - row, from, keys);
      }
    }
    for (std::size_t row = 0; row < count_; ++row) FinishRow(row);
  }

 private:
  /// Up to here LibTorch's own products are more exact than one long sum, and ours should be.
  static constexpr std::size_t kFewKeys = 11;
  /// Bytes of keys and values that are packed at once.
  static constexpr std::size_t kPartBytes = std::size_t{1} << 21;

  std::size_t KeysPerPart() const {
    const std::size_t row = sizeof(float) * (problem_.head_dim + output_width_);
    return std::max(kPartBytes / row / kKeyBlock, std::size_t{1}) * kKeyBlock;
  }

  void Prepare() {
    const std::size_t keys = std::min(KeysPerPart(), hwy::RoundUpTo(problem_.key_length, kPanel));
    space_.keys.reserve(keys * problem_.head_dim);
    space_.values.reserve(keys * output_width_);
    space_.rows.reserve((kPanel + 1) * problem_.head_dim + problem_.value_dim);
    space_.queries.reserve(kQueryBlock * problem_.head_dim);
    space_.scores.reserve(kQueryBlock * kScoreStride);
    space_.outputs.reserve(count_ * output_width_);
    space_.maxima.reserve(count_);
    space_.sums.reserve(count_);
    space_.row_flags.reserve(count_);
    std::fill_n(space_.maxima.data(), count_, -FLT_MAX);
    std::fill_n(space_.sums.data(), count_, 0.0F);
    std::fill_n(space_.row_flags.data(), count_, std::uint8_t{0});
    ReadMask();
  }

  void ReadMask() {
    key_count_ = problem_.key_length;
    if (!mask_.exists()) return;
    if (mask_.same_for_queries() || problem_.query_length == 1) {
      ListKeptKeys();
    } else if (mask_.same_for_keys() || problem_.key_length == 1) {
      row_mask_ = true;
    } else {
      full_mask_ = true;
      space_.keep.reserve(kQueryBlock * kKeyBlock);
    }
  }

  /// A mask that is the same for every query leaves keys out: what stays is a shorter problem
  /// without a mask.
  void ListKeptKeys() {
    space_.kept_keys.reserve(problem_.key_length);
    std::uint32_t* kept = space_.kept_keys.data();
    std::size_t count = 0;
    std::uint8_t buffer[kKeyBlock];
    for (std::size_t from = 0; from < problem_.key_length; from += kKeyBlock) {
      const std::size_t keys = std::min(kKeyBlock, problem_.key_length - from);
      const std::uint8_t* keep = mask_.row(first_, from, keys, buffer);
      for (std::size_t i = 0; i < keys; ++i) {
        kept[count] = static_cast<std::uint32_t>(from + i);
        count += keep[i] != 0;
      }
    }
    key_count_ = count;
    kept_ = count < problem_.key_length ? kept : nullptr;
  }

  /// How many of the packed keys the query at `position` may see.
  std::size_t Limit(std::size_t position) const {
    if (!problem_.causal) return key_count_;
    if (kept_ == nullptr) return std::min(position + 1, key_count_);
    return static_cast<std::size_t>(std::upper_bound(kept_, kept_ + key_count_, position) - kept_);
  }

  void Pack(std::size_t from, std::size_t keys) {
    const PackedRows which{kept_, from, keys};
    PackKeys(keys_, which, problem_.head_dim, space_.rows.data(), space_.keys.data());
    PackValues(values_, which, problem_.value_dim, space_.rows.data(), space_.values.data());
    part_from_ = from;
    part_keys_ = keys;
  }

  void RunQueries(std::size_t row, std::size_t rows, std::size_t from, std::size_t keys) {
    if (Limit(first_ + row + rows - 1) <= from) return;
    const std::size_t depth = problem_.head_dim;
    for (std::size_t i = 0; i < rows; ++i) {
      float* to = space_.queries.data() + i * depth;
      const float* query = queries_.get(first_ + row + i, depth, to);
      if (query != to) std::memcpy(to, query, depth * sizeof(float));
    }
    for (std::size_t block = from; block < from + keys; block += kKeyBlock) {
      RunBlock(row, rows, block, std::min(kKeyBlock, from + keys - block));
    }
  }

  void RunBlock(std::size_t row, std::size_t rows, std::size_t block, std::size_t keys) {
    Counts counts{};
    if (!CountKeys(row, rows, block, keys, counts)) return;
    const std::size_t groups = (rows + kBlockRows - 1) / kBlockRows;
    std::size_t widths[kQueryBlock] = {};
    const auto group_start = [&](std::size_t group) { return group * rows / groups; };
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t i = group_start(group); i < group_start(group + 1); ++i) {
        widths[group] = std::max(widths[group], counts.keys[i]);
      }
    }
    const std::size_t depth = problem_.head_dim;
    float* scores = space_.scores.data();
    for (std::size_t key = 0; key < keys; key += kPanel) {
      const float* panel = space_.keys.data() + (block - part_from_ + key) * depth;
      for (std::size_t group = 0; group < groups; ++group) {
        if (key >= widths[group]) continue;
        const std::size_t start = group_start(group);
        const Product product = {space_.queries.data() + start * depth, depth,        panel,  depth,
                                 scores + start * kScoreStride + key,   kScoreStride, nullptr};
        const std::size_t columns = std::min(kPanel, widths[group] - key);
        if (key_count_ <= kFewKeys) {
          MultiplyInPieces(group_start(group + 1) - start, columns, product);
        } else {
          Multiply(group_start(group + 1) - start, columns, product);
        }
      }
    }
    float rescale[kQueryBlock];
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t i = group_start(group); i < group_start(group + 1); ++i) {
        RowState state{space_.maxima[row + i], space_.sums[row + i], 1.0F};
        ToWeights(
            {scores + i * kScoreStride, counts.keys[i], widths[group], counts.keep[i], factor_},
            state);
        space_.maxima[row + i] = state.max;
        space_.sums[row + i] = state.sum;
        rescale[i] = state.rescale;
      }
    }
    std::uint8_t& started = space_.row_flags[row];
    const float* scale = (started & kRowStarted) != 0 ? rescale : nullptr;
    started |= kRowStarted;
    for (std::size_t column = 0; column < problem_.value_dim; column += kPanel) {
      const float* panel =
          space_.values.data() + column * part_keys_ + (block - part_from_) * kPanel;
      for (std::size_t group = 0; group < groups; ++group) {
        const std::size_t start = group_start(group);
        Multiply(group_start(group + 1) - start, std::min(kPanel, problem_.value_dim - column),
                 {scores + start * kScoreStride, kScoreStride, panel, widths[group],
                  space_.outputs.data() + (row + start) * output_width_ + column, output_width_,
                  scale != nullptr ? scale + start : nullptr});
      }
    }
  }

  /// For each query of a block: how many of its keys it may see, and its part of the mask.
  struct Counts {
    std::size_t keys[kQueryBlock];
    const std::uint8_t* keep[kQueryBlock];
  };

  /// False where no query of the block keeps a key.
  bool CountKeys(std::size_t row, std::size_t rows, std::size_t block, std::size_t keys,
                 Counts& counts) {
    bool any = false;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t query = first_ + row + i;
      const std::size_t limit = Limit(query);
      std::size_t count = limit <= block ? 0 : std::min(limit - block, keys);
      counts.keep[i] = nullptr;
      std::uint8_t& flags = space_.row_flags[row + i];
      if (full_mask_ && count > 0) {
        counts.keep[i] = mask_.row(query, block, count, space_.keep.data() + i * kKeyBlock);
        if (!AnyKept(counts.keep[i], count)) {
          flags |= kRowSkipped;
          count = 0;
        }
      } else if (row_mask_ && count > 0) {
        std::uint8_t keep = 0;
        if (*mask_.row(query, 0, 1, &keep) == 0) count = 0;
      }
      if (count > 0) flags |= kRowKeeps;
      counts.keys[i] = count;
      any = any || count > 0;
    }
    return any;
  }

  static bool AnyKept(const std::uint8_t* keep, std::size_t count) {
    std::uint64_t any = 0;
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      std::uint64_t bytes;
      std::memcpy(&bytes, keep + i, sizeof(bytes));
      any |= bytes;
    }
    for (; i < count; ++i) any |= keep[i];
    return any != 0;
  }

  void FinishRow(std::size_t row) {
    const std::uint8_t flags = space_.row_flags[row];
    const std::size_t query = first_ + row;
    RowResult result{space_.maxima[row], space_.sums[row], (flags & kRowKeeps) != 0,
                     (flags & kRowSkipped) != 0 || Limit(query) < problem_.key_length};
    Finish(query, result, space_.outputs.data() + row * output_width_);
  }

  std::size_t output_width_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t key_count_ = 0;            // packed keys: all, or those that every query keeps
  const std::uint32_t* kept_ = nullptr;  // which they are, if not all
  bool row_mask_ = false;
  bool full_mask_ = false;
  std::size_t part_from_ = 0;
  std::size_t part_keys_ = 0;
};

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
