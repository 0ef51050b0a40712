#include "modules/projection_plan.h"

#include <gtest/gtest.h>

namespace self_attention {
namespace {

ProjectionSizes sizes(std::int64_t queries, std::int64_t keys) {
  return {.batch = 2,
          .query_length = queries,
          .key_length = keys,
          .heads = 4,
          .head_dim = 16,
          .embed = 64};
}

TEST(SharedHeadPlan, FoldsTheScoresWeightsWhereThatIsFewerRowsThanHeadDim) {
  // 2·2·4 = 16 rows of queries are d, and 8 are fewer.
  EXPECT_EQ(plan_shared_heads(sizes(2, 99)).scores, ScoreProjection::kQueryOnce);
  EXPECT_EQ(plan_shared_heads(sizes(1, 99)).scores, ScoreProjection::kQueryTwice);
}

TEST(SharedHeadPlan, ProjectsTheShorterOfQueryAndKeys) {
  EXPECT_EQ(plan_shared_heads(sizes(9, 9)).scores, ScoreProjection::kQueryOnce);
  EXPECT_EQ(plan_shared_heads(sizes(10, 9)).scores, ScoreProjection::kKeyOnce);
  EXPECT_EQ(plan_shared_heads(sizes(9, 10)).scores, ScoreProjection::kQueryOnce);
  // Below d rows the query twice, unless the keys and the folding are fewer rows still.
  EXPECT_EQ(plan_shared_heads({1, 3, 2, 1, 4, 4}).scores, ScoreProjection::kQueryTwice);
  EXPECT_EQ(plan_shared_heads({1, 3, 1, 1, 4, 4}).scores, ScoreProjection::kKeyOnce);
}

TEST(SharedHeadPlan, ProjectsValuesWhereTheRowsAreFewest) {
  // Of values 8K, of what is attended 8Q, of the output's weight 256, which must be 4096 fewer.
  EXPECT_EQ(plan_shared_heads(sizes(543, 999)).values, ValueProjection::kAttended);
  EXPECT_EQ(plan_shared_heads(sizes(544, 999)).values, ValueProjection::kOutput);
  EXPECT_EQ(plan_shared_heads(sizes(545, 544)).values, ValueProjection::kOutput);
  EXPECT_EQ(plan_shared_heads(sizes(544, 543)).values, ValueProjection::kValues);
  EXPECT_EQ(plan_shared_heads(sizes(20, 20)).values, ValueProjection::kAttended);
  EXPECT_EQ(plan_shared_heads(sizes(20, 19)).values, ValueProjection::kValues);
}

TEST(SharedHeadPlan, TakesSizesWhoseProductsOverflow) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_EQ(plan_shared_heads({huge, 0, huge, 8, 8, 64}).values, ValueProjection::kAttended);
}

TEST(FullPlan, LeavesKeysRawForFewQueriesOnly) {
  // Per key: 2·64² + 2Q·64 + 32·64 beside 4Q·64·4, and 2·64² a query.
  EXPECT_TRUE(leaves_keys_raw(sizes(1, 1000)));
  EXPECT_TRUE(leaves_keys_raw(sizes(11, 1000)));
  EXPECT_FALSE(leaves_keys_raw(sizes(12, 1000)));
  EXPECT_FALSE(leaves_keys_raw(sizes(1, 0)));
}

TEST(FullPlan, MovesTheValueBiasWhereValuesHaveMoreRows) {
  EXPECT_FALSE(moves_value_bias(sizes(9, 32)));
  EXPECT_TRUE(moves_value_bias(sizes(9, 33)));
  EXPECT_FALSE(moves_value_bias(sizes(9, 0)));
}

TEST(LargeProduct, BeginsAtTwoToTheTwentyOneWithEightOnEverySide) {
  EXPECT_TRUE(is_large_product(32, 256, 256));
  EXPECT_FALSE(is_large_product(31, 256, 256));
  EXPECT_TRUE(is_large_product(8, 512, 512));
  EXPECT_FALSE(is_large_product(7, 600, 600));
  EXPECT_FALSE(is_large_product(1 << 20, 7, 8));
  EXPECT_FALSE(is_large_product(1 << 20, 8, 7));
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_TRUE(is_large_product(huge, huge, 8));
  EXPECT_FALSE(is_large_product(0, huge, huge));
}

TEST(LargeProduct, TakesRowsToFourSignificantBits) {
  for (const std::int64_t n : {0, 1, 15, 16, 18, 30, 288, 1024, 1920}) {
    EXPECT_EQ(rows_at_once(n), n);
  }
  EXPECT_EQ(rows_at_once(17), 16);
  EXPECT_EQ(rows_at_once(31), 30);
  EXPECT_EQ(rows_at_once(1000), 960);
  EXPECT_EQ(rows_at_once((std::int64_t{1} << 40) + 1), std::int64_t{1} << 40);
}

TEST(LargeProduct, HasPiecesOfTwoToTheTwentyFiveAndAtLeast256Rows) {
  EXPECT_EQ(rows_of_piece(64, 64), 8192);
  EXPECT_EQ(rows_of_piece(64, 65), 8192);
  EXPECT_EQ(rows_of_piece(64, 63), 16384);
  EXPECT_EQ(rows_of_piece(256, 512), 256);
  EXPECT_EQ(rows_of_piece(1 << 20, 1 << 20), 256);
}

}  // namespace
}  // namespace self_attention
