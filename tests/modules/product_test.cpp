// The products of modules by oneDNN and by BLAS: numbers, gradients, and when which of them runs.

#include "modules/product.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <self_attention/ops/cpu_target.h>
#include <torch/autograd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/dispatched_ops.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::dispatched_ops;
using testing::near;

constexpr const char* kOneDnn = "mkldnn::_linear_pointwise";

bool uses_onednn(const std::function<void()>& call) {
  const auto names = dispatched_ops(call);
  return std::find(names.begin(), names.end(), kOneDnn) != names.end();
}

bool has_onednn() {
  return at::hasMKLDNN() && c10::Dispatcher::singleton().findSchema({kOneDnn, ""}).has_value();
}

/// Rows (…, a) and matrices (a, b) in every order in memory: plain, transposed, with gaps,
/// repeated.
struct Operands {
  torch::Tensor rows;
  torch::Tensor matrix;
};

std::vector<Operands> all_operands(int64_t n, int64_t a, int64_t b) {
  std::vector<Operands> all;
  for (const auto& rows :
       {torch::randn({n, a}), torch::randn({2, n / 4, 2, a}), torch::randn({n, 2 * a}).slice(1, a),
        torch::randn({a, n}).t(), torch::randn({1, a}).expand({n, a})}) {
    for (const auto& matrix :
         {torch::randn({a, b}), torch::randn({b, a}).t(), torch::randn({a, b, 2}).select(2, 1),
          torch::randn({a, 1}).expand({a, b})}) {
      all.push_back({rows, matrix});
    }
  }
  return all;
}

class Product : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    torch::manual_seed(0);
    if (GetParam() && !has_onednn()) GTEST_SKIP() << "LibTorch has no oneDNN";
  }

  torch::Tensor product(const torch::Tensor& rows, const torch::Tensor& matrix,
                        const torch::Tensor& bias = {}) const {
    return self_attention::product(rows, matrix, bias, GetParam());
  }
};

// Below 2^21 multiply-adds, there, and above.
const std::vector<std::array<int64_t, 3>> kSizes = {
    {4, 8, 8}, {252, 96, 64}, {256, 128, 64}, {60, 200, 256}};

TEST_P(Product, IsTheProduct) {
  const torch::NoGradGuard no_grad;
  for (const auto& [n, a, b] : kSizes) {
    const auto bias = torch::randn({b});
    for (const auto& [rows, matrix] : all_operands(n, a, b)) {
      const auto expected = rows.to(torch::kFloat64).matmul(matrix.to(torch::kFloat64));
      EXPECT_TRUE(near(product(rows, matrix), expected, 1e-4));
      EXPECT_TRUE(near(product(rows, matrix, bias), expected + bias, 1e-4));
    }
  }
}

TEST_P(Product, HasTheProductsGradients) {
  for (const auto& [n, a, b] : kSizes) {
    for (auto [rows, matrix] : all_operands(n, a, b)) {
      for (const bool biased : {false, true}) {
        torch::autograd::variable_list leaves = {rows, matrix};
        if (biased) leaves.push_back(torch::randn({b}));
        torch::autograd::variable_list wide;
        for (auto& leaf : leaves) {
          leaf.requires_grad_();
          wide.push_back(leaf.detach().to(torch::kFloat64).requires_grad_());
        }
        const auto output = product(rows, matrix, biased ? leaves[2] : torch::Tensor());
        auto exact = wide[0].matmul(wide[1]);
        if (biased) exact = exact + wide[2];
        // One that autograd expands from a single number, and one of many.
        for (const auto& incoming :
             {torch::ones({}).expand_as(output), torch::randn_like(output)}) {
          const auto found = torch::autograd::grad({output}, leaves, {incoming}, true);
          const auto right =
              torch::autograd::grad({exact}, wide, {incoming.to(torch::kFloat64)}, true);
          for (std::size_t i = 0; i < leaves.size(); ++i) {
            const double largest = right[i].abs().max().item<double>();
            EXPECT_TRUE(near(found[i], right[i], 1e-5 * largest)) << i << " of " << n << " " << a;
          }
        }
      }
    }
  }
}

TEST_P(Product, RecordsForWhatNeedsIt) {
  for (int which = 0; which < 3; ++which) {
    std::array<torch::Tensor, 3> tensors = {torch::randn({256, 128}), torch::randn({128, 64}),
                                            torch::randn({64})};
    tensors[which].requires_grad_();
    product(tensors[0], tensors[1], tensors[2]).sum().backward();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(tensors[i].grad().defined(), i == which);
  }
  EXPECT_FALSE(product(torch::randn({256, 128}), torch::randn({128, 64})).requires_grad());
}

TEST_P(Product, KeepsForGradientsWhatTheyNeed) {
  const auto is_kept = [&](bool rows_train, bool matrix_trains) {
    torch::Tensor rows = torch::randn({256, 128}).requires_grad_(rows_train);
    torch::Tensor matrix = torch::randn({128, 64}).requires_grad_(matrix_trains);
    const auto output = product(rows, matrix, torch::randn({64}).requires_grad_());
    const c10::weak_intrusive_ptr<c10::StorageImpl> rows_memory(
        rows.storage().getWeakStorageImpl());
    const c10::weak_intrusive_ptr<c10::StorageImpl> matrix_memory(
        matrix.storage().getWeakStorageImpl());
    // A leaf's own node keeps the leaf.
    if (!rows_train) rows.reset();
    if (!matrix_trains) matrix.reset();
    return std::pair(!rows_memory.expired(), !matrix_memory.expired());
  };
  EXPECT_EQ(is_kept(false, true), std::pair(true, true));
  EXPECT_EQ(is_kept(true, false), std::pair(true, true));
  EXPECT_EQ(is_kept(false, false), std::pair(false, false));
}

INSTANTIATE_TEST_SUITE_P(By, Product, ::testing::Bool(),
                         [](const auto& library) { return library.param ? "OneDnn" : "Blas"; });

TEST(LargeProduct, BeginsAtTwoToTheTwentyOne) {
  EXPECT_TRUE(is_large_product(32, 256, 256));
  EXPECT_TRUE(is_large_product(1 << 21, 1, 1));
  EXPECT_FALSE(is_large_product(31, 256, 256));
  EXPECT_FALSE(is_large_product(0, int64_t{1} << 40, int64_t{1} << 40));
  EXPECT_TRUE(is_large_product(int64_t{1} << 40, int64_t{1} << 40, 1));  // no overflow
}

TEST(LargeProduct, IsOneDnnsOrBlass) {
  if (!has_onednn()) GTEST_SKIP() << "LibTorch has no oneDNN";
  const auto rows = torch::randn({32, 256});
  const auto matrix = torch::randn({256, 256});
  const auto used = [&](const torch::Tensor& a, const torch::Tensor& b, bool onednn = true) {
    return uses_onednn([&] { product(a, b, {}, onednn); });
  };
  EXPECT_TRUE(used(rows, matrix));
  EXPECT_FALSE(used(rows, matrix, false));
  EXPECT_FALSE(used(rows.slice(0, 1), matrix));
  for (const auto type : {torch::kFloat64, torch::kBFloat16}) {
    EXPECT_FALSE(used(rows.to(type), matrix.to(type)));
  }
  EXPECT_FALSE(used(rows, torch::_neg_view(matrix)));
  auto parameter = matrix.clone().requires_grad_();
  EXPECT_TRUE(used(rows, parameter));
  const auto output = product(rows, parameter, {}, true);
  const auto gradient = [&](bool recorded) {
    return uses_onednn([&] {
      torch::autograd::grad({output}, {parameter}, {torch::randn_like(output)}, true, recorded);
    });
  };
  EXPECT_TRUE(gradient(false));
  EXPECT_FALSE(gradient(true));
}

TEST(LargeProduct, IsBlassWhereOneDnnIsSwitchedOffOrTheTargetIsNotAvx512) {
  const std::string target = cpu_target();
  if (!prefers_onednn()) {
    // Then MKL is as fast here, or not there.
    EXPECT_FALSE(uses_onednn([] { product(torch::randn({64, 256}), torch::randn({256, 256})); }));
    return;
  }
  EXPECT_EQ(target, "avx512");
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_FALSE(prefers_onednn());
  at::globalContext().setUserEnabledMkldnn(true);
  set_cpu_target("avx2");
  EXPECT_FALSE(prefers_onednn());
  set_cpu_target(target);
  EXPECT_TRUE(uses_onednn([] { product(torch::randn({64, 256}), torch::randn({256, 256})); }));
}

}  // namespace
}  // namespace self_attention
