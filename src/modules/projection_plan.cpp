#include "modules/projection_plan.h"

#include <algorithm>
#include <bit>

namespace self_attention {
namespace {

// An empty tensor's sizes may be so large that integer products overflow.
double product_of(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

}  // namespace

SharedHeadPlan plan_shared_heads(const ProjectionSizes& sizes) {
  constexpr double kWorthFoldingOutput = 1 << 20;
  const double query_rows = product_of(sizes.batch, sizes.query_length, sizes.heads);
  const double key_rows = product_of(sizes.batch, sizes.key_length, sizes.heads);
  const double output_rows = product_of(1, sizes.embed, sizes.heads);
  const auto folding = static_cast<double>(sizes.head_dim);

  SharedHeadPlan plan = {ScoreProjection::kQueryOnce, ValueProjection::kAttended};
  if (key_rows < query_rows && key_rows + folding < 2 * query_rows) {
    plan.scores = ScoreProjection::kKeyOnce;
  } else if (query_rows < folding) {
    plan.scores = ScoreProjection::kQueryTwice;
  }
  const double saved = (std::min(query_rows, key_rows) - output_rows) * folding * folding;
  if (saved >= kWorthFoldingOutput) {
    plan.values = ValueProjection::kOutput;
  } else if (key_rows < query_rows) {
    plan.values = ValueProjection::kValues;
  }
  return plan;
}

bool leaves_keys_raw(const ProjectionSizes& sizes) {
  constexpr double kMove = 16;
  const auto embed = static_cast<double>(sizes.embed);
  const double queries = product_of(sizes.batch, sizes.query_length, sizes.embed);
  const double keys = product_of(sizes.batch, sizes.key_length, sizes.embed);
  const double scores = queries * static_cast<double>(sizes.key_length);
  const double projected = 2 * keys * embed + 2 * scores + kMove * 2 * keys;
  const double raw = 2 * queries * embed + 2 * 2 * scores * static_cast<double>(sizes.heads);
  return raw < projected;  // never without keys, where `projected` is zero
}

bool is_large_product(std::int64_t n, std::int64_t a, std::int64_t b) {
  constexpr double kLarge = 1 << 21;
  return std::min({n, a, b}) >= 8 && product_of(n, a, b) >= kLarge;
}

std::int64_t rows_at_once(std::int64_t n) {
  constexpr int kSignificant = 4;
  const int dropped =
      std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) - kSignificant);
  return n >> dropped << dropped;
}

std::int64_t rows_of_piece(std::int64_t a, std::int64_t b) {
  constexpr double kPiece = 1 << 25;
  std::int64_t rows = 256;
  while (product_of(rows, a, b) < kPiece) rows *= 2;
  return rows;
}

bool moves_value_bias(const ProjectionSizes& sizes) {
  return product_of(sizes.batch, sizes.key_length, 1) > static_cast<double>(sizes.embed);
}

}  // namespace self_attention
