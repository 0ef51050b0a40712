// Per-target include: attention of many queries, by blocks.

#if defined(SELF_ATTENTION_BLOCK_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELF_ATTENTION_BLOCK_ATTENTION_INL_H_
#undef SELF_ATTENTION_BLOCK_ATTENTION_INL_H_
#else
#define SELF_ATTENTION_BLOCK_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <span>

#include "backends/cpu/kernel/block_product-inl.h"
#include "backends/cpu/kernel/head_task-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {

/// Queries of a block of scores, a multiple of every kBlockRows.
inline constexpr std::size_t kQueryBlock = 48;
/// The last block of keys may be so much longer: few keys by themselves cost almost as much as
/// many.
inline constexpr std::size_t kMoreKeys = 16;
/// Not a power of two, so that the rows of a block do not share the cache's sets.
inline constexpr std::size_t kScoreStride = kKeyBlock + kMoreKeys;

/// What is known of a query's row.
enum RowFlag : std::uint8_t {
  kRowKeeps = 1,    // it keeps a key
  kRowStarted = 2,  // its block's results have begun
};

/// The rows of a block in even groups, each at most a product's register block: few rows take
/// almost as long as many.
class RowGroups {
 public:
  explicit RowGroups(std::size_t rows = 0) : count_((rows + kBlockRows - 1) / kBlockRows) {
    for (std::size_t group = 0; group < count_; ++group) {
      starts_[group + 1] = even_part(group, count_, rows).end;
    }
  }

  std::size_t count() const { return count_; }
  std::size_t start(std::size_t group) const { return starts_[group]; }
  std::size_t rows(std::size_t group) const { return starts_[group + 1] - starts_[group]; }

 private:
  std::size_t count_;
  std::array<std::size_t, kQueryBlock / kBlockRows + 1> starts_ = {};
};

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
    for (std::size_t from = 0, keys = 0; from < key_count_; from += keys) {
      if (from >= Limit(queries.end - 1)) break;
      keys = NextKeys(key_count_ - from, part);
      Pack(from, keys);
      const std::size_t blocks = (count_ + kQueryBlock - 1) / kQueryBlock;
      for (std::size_t block = 0; block < blocks; ++block) {
        const Range rows = even_part(block, blocks, count_);
        RunQueries(rows.begin, rows.end - rows.begin, from, keys);
      }
    }
    // Their rows are finished already.
    const bool plain = uniform_ && key_count_ == problem_.key_length;
    if (direct_ && plain && problem_.row_maxima == nullptr) return;
    for (std::size_t row = 0; row < count_; ++row) FinishRow(row);
  }

 protected:
  /// Bytes of keys and values that are packed at once.
  static constexpr std::size_t kPartBytes = std::size_t{1} << 21;

  std::size_t KeysPerPart() const {
    const std::size_t row = sizeof(float) * (problem_.head_dim + output_width_);
    return std::max(kPartBytes / row / kKeyBlock, std::size_t{1}) * kKeyBlock;
  }

  /// How many of the keys that are left come next.
  static std::size_t NextKeys(std::size_t left, std::size_t usual) {
    return left <= usual + kMoreKeys ? left : usual;
  }

  void Prepare() {
    const std::size_t most = std::min(KeysPerPart() + kMoreKeys, problem_.key_length);
    const std::size_t keys = hwy::RoundUpTo(most, kPanel);
    space_.keys.reserve(keys * problem_.head_dim);
    space_.values.reserve(keys * output_width_);
    space_.rows.reserve((kPanel + 1) * problem_.head_dim + problem_.value_dim);
    space_.queries.reserve(kQueryBlock * problem_.head_dim);
    space_.scores.reserve(kQueryBlock * kScoreStride);
    space_.maxima.reserve(count_ + kFolded);
    space_.sums.reserve(count_ + kFolded);
    space_.row_flags.reserve(count_);
    std::fill_n(space_.maxima.data(), count_, -FLT_MAX);
    std::fill_n(space_.sums.data(), count_, 0.0F);
    std::fill_n(space_.row_flags.data(), count_, std::uint8_t{0});
    ReadMask();
    uniform_ = !problem_.causal && !row_mask_ && !full_mask_;
    direct_ = key_count_ > 0 && HasOneBlock() && problem_.row_kind() == ElementKind::kFloat32 &&
              problem_.value_dim % kLanes == 0 && output_row_bytes_ > 0;
    space_.outputs.reserve((direct_ ? 1 : count_) * output_width_);
  }

  bool HasOneBlock() const { return NextKeys(key_count_, kKeyBlock) == key_count_; }

  void ReadMask() {
    key_count_ = problem_.key_length;
    if (!mask_.exists()) return;
    if (lists_keys_ && (mask_.same_for_queries() || problem_.query_length == 1)) {
      ListKeptKeys();
    } else if (mask_.same_for_keys() || problem_.key_length == 1) {
      row_mask_ = true;
    } else {
      full_mask_ = true;
      space_.keep.reserve(kQueryBlock * kScoreStride);
    }
  }

  /// A mask that is the same for every query leaves keys out: what stays is a shorter problem
  /// without a mask.
  void ListKeptKeys() {
    space_.kept_keys.reserve(problem_.key_length + kLanes);
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
    part_from_ = from;
    if (ReadsValuesInPlace()) {
      value_rows_ = values_.get(from, problem_.value_dim, nullptr);
      value_stride_ = static_cast<std::size_t>(values_.row_stride);
      column_stride_ = 1;
    } else {
      PackValues(values_, which, problem_.value_dim, space_.rows.data(), space_.values.data());
      value_rows_ = space_.values.data();
      value_stride_ = kPanel;
      column_stride_ = keys;
    }
  }

  /// A few products of many rows take less from the second-level cache than packing costs.
  bool ReadsValuesInPlace() const {
    constexpr std::size_t kMostQueries = kBlockRows >= 12 ? 128 : 32;
    return count_ <= kMostQueries && kept_ == nullptr && problem_.kind == ElementKind::kFloat32 &&
           values_.stride == 1 && values_.row_stride > 0 && problem_.value_dim % kLanes == 0;
  }

  void RunQueries(std::size_t row, std::size_t rows, std::size_t from, std::size_t keys) {
    if (Limit(first_ + row + rows - 1) <= from) return;
    groups_ = RowGroups(rows);
    ReadQueries(row, rows);
    for (std::size_t block = from, count = 0; block < from + keys; block += count) {
      count = NextKeys(from + keys - block, kKeyBlock);
      RunBlock(row, rows, block, count);
    }
  }

  /// A block of queries as rows that products read: in place where few panels of keys read them
  /// and the rows of a product do not share the first-level cache's sets.
  void ReadQueries(std::size_t row, std::size_t rows) {
    constexpr std::int64_t kPage = 4096 / sizeof(float);
    const std::size_t depth = problem_.head_dim;
    float* copies = space_.queries.data();
    query_rows_ = queries_.get(first_ + row, depth, copies);
    query_stride_ = static_cast<std::size_t>(queries_.row_stride);
    const bool spread = queries_.row_stride > 0 && queries_.row_stride % kPage != 0;
    if (query_rows_ != copies && spread && HasOneBlock()) return;
    query_rows_ = copies;
    query_stride_ = depth;
    for (std::size_t i = 0; i < rows; ++i) {
      float* to = copies + i * depth;
      const float* query = queries_.get(first_ + row + i, depth, to);
      if (query != to) CopyRow(query, depth, to);
    }
  }

  void RunBlock(std::size_t row, std::size_t rows, std::size_t block, std::size_t keys) {
    RowScores scores[kQueryBlock];
    if (!CountKeys(row, rows, block, keys, scores)) return;
    const float* panels = space_.keys.data() + (block - part_from_) * problem_.head_dim;
    MultiplyKeys({query_rows_, query_stride_, problem_.head_dim}, panels, scores);
    float scale[kQueryBlock + kFolded];  // of what is in the output, or where direct of the product
    for (std::size_t i = 0; i < rows; i += kFolded) {
      ToWeights(scores + i, std::min(kFolded, rows - i),
                {space_.maxima.data() + row + i, space_.sums.data() + row + i,
                 direct_ ? nullptr : scale + i},
                factor_);
    }
    if (drops()) {
      for (std::size_t i = 0; i < rows; ++i) {
        DropWeights(scores[i], PackedDropout(first_ + row + i, block));
      }
    }
    if (direct_) {
      for (std::size_t i = 0; i < rows; ++i) scale[i] = 1.0F / space_.sums[row + i];
    }
    MultiplyValues(scores, row, block, scale);
  }

  /// For weights of the packed keys from `key` on.
  RowDropout PackedDropout(std::size_t query, std::size_t key) const {
    return DropoutOf(query, kept_ == nullptr ? nullptr : kept_ + key, key);
  }

  /// Rows of a product's left operand.
  struct LeftRows {
    const float* data;
    std::size_t stride;
    std::size_t depth;
  };

  /// Where LibTorch's own products are more exact than one long sum, and ours should be: of few
  /// keys, and of few queries, which come here for their gradients alone.
  bool SumsInPieces() const {
    constexpr std::size_t kFewKeys = 11;
    return key_count_ <= kFewKeys ||
           (problem_.row_maxima != nullptr && problem_.query_length <= kFewQueries);
  }

  /// Rows by the panels of a block of keys; the results go `offset` behind the rows' scores.
  void MultiplyKeys(const LeftRows& left, const float* panels, const RowScores* scores,
                    std::ptrdiff_t offset = 0) const {
    std::size_t widest = 0;
    for (std::size_t group = 0; group < groups_.count(); ++group) {
      widest = std::max(widest, scores[groups_.start(group)].width);
    }
    for (std::size_t key = 0; key < widest; key += kPanel) {
      for (std::size_t group = 0; group < groups_.count(); ++group) {
        const std::size_t start = groups_.start(group);
        const RowScores& first = scores[start];
        if (key >= first.width) continue;
        const Product product = {.a = left.data + start * left.stride,
                                 .a_stride = left.stride,
                                 .b = panels + key * left.depth,
                                 .b_stride = kPanel,
                                 .depth = left.depth,
                                 .c = first.scores + offset + key,
                                 .c_stride = kScoreStride};
        const std::size_t columns = std::min(kPanel, first.width - key);
        if (SumsInPieces()) {
          MultiplyInPieces(groups_.rows(group), columns, product);
        } else {
          Multiply(groups_.rows(group), columns, product);
        }
      }
    }
  }

  void MultiplyValues(const RowScores* scores, std::size_t row, std::size_t block,
                      const float* scale) {
    std::uint8_t& flags = space_.row_flags[row];
    const bool started = (flags & kRowStarted) != 0;
    flags |= kRowStarted;
    float* output = direct_ ? OutputRow(first_ + row) : space_.outputs.data() + row * output_width_;
    const std::size_t stride =
        direct_ ? static_cast<std::size_t>(output_row_bytes_) / sizeof(float) : output_width_;
    for (std::size_t column = 0; column < problem_.value_dim; column += kPanel) {
      const float* panel =
          value_rows_ + column * column_stride_ + (block - part_from_) * value_stride_;
      for (std::size_t group = 0; group < groups_.count(); ++group) {
        const std::size_t start = groups_.start(group);
        Multiply(groups_.rows(group), std::min(kPanel, problem_.value_dim - column),
                 {.a = scores[start].scores,
                  .a_stride = kScoreStride,
                  .b = panel,
                  .b_stride = value_stride_,
                  .depth = scores[start].width,
                  .c = output + start * stride + column,
                  .c_stride = stride,
                  .row_scale = started ? scale + start : nullptr,
                  .result_scale = direct_ ? scale + start : nullptr});
      }
    }
  }

  /// For each query of a block: how many of its keys it may see, and its part of the mask. False
  /// where no query keeps a key.
  bool CountKeys(std::size_t row, std::size_t rows, std::size_t block, std::size_t keys,
                 RowScores* scores) {
    bool any = uniform_;
    for (std::size_t i = 0; i < rows; ++i) {
      scores[i] = {space_.scores.data() + i * kScoreStride, keys, keys, nullptr};
      if (uniform_) {
        space_.row_flags[row + i] |= kRowKeeps;
      } else {
        SelectKeys(row + i, block, scores[i]);
        any = any || scores[i].count > 0;
      }
    }
    if (!uniform_) WidenGroups(scores);
    return any;
  }

  /// One query's part of that.
  void SelectKeys(std::size_t row, std::size_t block, RowScores& scores) {
    const std::size_t query = first_ + row;
    const std::size_t limit = Limit(query);
    std::size_t count = limit <= block ? 0 : std::min(limit - block, scores.count);
    if (full_mask_ && count > 0) {
      const std::size_t i = (scores.scores - space_.scores.data()) / kScoreStride;
      scores.keep = mask_.row(query, block, count, space_.keep.data() + i * kScoreStride);
      if (!AnyKept(scores.keep, count)) count = 0;
    } else if (row_mask_ && count > 0) {
      std::uint8_t keep = 0;
      if (*mask_.row(query, 0, 1, &keep) == 0) count = 0;
    }
    if (count > 0) space_.row_flags[row] |= kRowKeeps;
    scores.count = count;
  }

  /// Rows that are multiplied together are of one width.
  void WidenGroups(RowScores* scores) const {
    for (std::size_t group = 0; group < groups_.count(); ++group) {
      const std::span rows(scores + groups_.start(group), groups_.rows(group));
      std::size_t width = 0;
      for (const RowScores& row : rows) width = std::max(width, row.count);
      for (RowScores& row : rows) row.width = width;
    }
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
    // A full mask's keys may have weights, which the gradients then look for one by one.
    const bool skipped = full_mask_ || Limit(query) < problem_.key_length;
    const RowResult result{space_.maxima[row], space_.sums[row], (flags & kRowKeeps) != 0, skipped};
    if (direct_) {
      FinishOddRow(query, result, space_.outputs.data());
    } else {
      Finish(query, result, space_.outputs.data() + row * output_width_);
    }
  }

  std::size_t output_width_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t key_count_ = 0;            // packed keys: all, or those that every query keeps
  const std::uint32_t* kept_ = nullptr;  // which they are, if not all
  bool lists_keys_ = true;  // rather than looking at a mask common to all queries for each of them
  bool row_mask_ = false;
  bool full_mask_ = false;
  bool uniform_ = false;  // every query sees every packed key
  bool direct_ = false;   // one block of keys, whose products are the output's own rows
  std::size_t part_from_ = 0;
  RowGroups groups_;                   // of the block of queries
  const float* query_rows_ = nullptr;  // of the block of queries, where products read them
  std::size_t query_stride_ = 0;
  const float* value_rows_ = nullptr;  // of the part's keys, where products read them
  std::size_t value_stride_ = 0;       // from key to key
  std::size_t column_stride_ = 0;      // from column to column, in whole panels
};

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
