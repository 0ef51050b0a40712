// The products of modules by oneDNN and by BLAS: numbers, gradients, and when which of them runs.

#include "modules/product.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <self_attention/self_attention.h>
#include <torch/autograd.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/ops_seen.h"
#include "support/tensor_matchers.h"
#include "support/use_target.h"

namespace self_attention {
namespace {

using testing::near;

constexpr const char* kOneDnn = "mkldnn::_linear_pointwise";

bool uses_onednn(const std::function<void()>& call) {
  const testing::OpsSeen seen;
  call();
  return seen.count(kOneDnn) > 0;
}

class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;
};

bool has_onednn() {
  return at::hasMKLDNN() && c10::Dispatcher::singleton().findSchema({kOneDnn, ""}).has_value();
}

/// Rows (…, a), matrices (a, b) and biases (b) in every order in memory: plain, transposed, with
/// gaps, repeated. Some have no bias.
struct Operands {
  torch::Tensor rows;
  torch::Tensor matrix;
  torch::Tensor bias;
};

std::vector<Operands> all_operands(int64_t n, int64_t a, int64_t b) {
  const std::vector<torch::Tensor> biases = {
      torch::Tensor(), torch::randn({b}), torch::randn({b, 2}).select(1, 1),
      torch::randn({1}).expand({b}), torch::randn({2 * b}).slice(0, b)};
  std::vector<Operands> all;
  for (const auto& rows :
       {torch::randn({n, a}), torch::randn({2, n / 4, 2, a}), torch::randn({n, 2 * a}).slice(1, a),
        torch::randn({a, n}).t(), torch::randn({1, a}).expand({n, a})}) {
    for (const auto& matrix :
         {torch::randn({a, b}), torch::randn({b, a}).t(), torch::randn({a, b, 2}).select(2, 1),
          torch::randn({a, 1}).expand({a, b})}) {
      // Each kind of bias beside each kind of matrix, as there are five and four of them.
      all.push_back({rows, matrix, biases[all.size() % biases.size()]});
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

// Below 2^21 multiply-adds, there, and above; in pieces, of which the last is small.
const std::vector<std::array<int64_t, 3>> kSizes = {
    {4, 8, 8}, {252, 96, 64}, {256, 128, 64}, {60, 200, 256}, {260, 128, 64}, {2200, 128, 128}};

double largest(const torch::Tensor& tensor) { return tensor.abs().max().item<double>(); }

TEST_P(Product, IsTheProduct) {
  const torch::NoGradGuard no_grad;
  for (const auto& [n, a, b] : kSizes) {
    SCOPED_TRACE(c10::str(n, " rows by (", a, ", ", b, ")"));
    for (const auto& [rows, matrix, bias] : all_operands(n, a, b)) {
      auto expected = rows.to(torch::kFloat64).matmul(matrix.to(torch::kFloat64));
      if (bias.defined()) expected = expected + bias;
      EXPECT_TRUE(near(product(rows, matrix, bias), expected, 1e-5 * largest(expected)));
    }
  }
}

TEST_P(Product, HasTheProductsGradients) {
  for (const auto& [n, a, b] : kSizes) {
    SCOPED_TRACE(c10::str(n, " rows by (", a, ", ", b, ")"));
    for (const auto& [rows, matrix, bias] : all_operands(n, a, b)) {
      torch::autograd::variable_list leaves = {rows, matrix};
      if (bias.defined()) leaves.push_back(bias);
      torch::autograd::variable_list wide;
      for (auto& leaf : leaves) {
        leaf.requires_grad_();
        wide.push_back(leaf.detach().to(torch::kFloat64).requires_grad_());
      }
      const auto output = product(rows, matrix, bias);
      auto exact = wide[0].matmul(wide[1]);
      if (bias.defined()) exact = exact + wide[2];
      // One that autograd expands from a single number, and one of many.
      for (const auto& incoming : {torch::ones({}).expand_as(output), torch::randn_like(output)}) {
        const auto found = torch::autograd::grad({output}, leaves, {incoming}, true);
        const auto right =
            torch::autograd::grad({exact}, wide, {incoming.to(torch::kFloat64)}, true);
        for (std::size_t i = 0; i < leaves.size(); ++i) {
          EXPECT_TRUE(near(found[i], right[i], 1e-5 * largest(right[i]))) << i;
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
  // Results of other operations, which nothing else holds.
  const auto is_kept = [&](bool rows_train, bool matrix_trains) {
    torch::Tensor rows = torch::randn({256, 128}).requires_grad_(rows_train) + 1;
    torch::Tensor matrix = torch::randn({128, 64}).requires_grad_(matrix_trains) + 1;
    const auto output = product(rows, matrix, torch::randn({64}).requires_grad_());
    const c10::weak_intrusive_ptr<c10::StorageImpl> rows_memory(
        rows.storage().getWeakStorageImpl());
    const c10::weak_intrusive_ptr<c10::StorageImpl> matrix_memory(
        matrix.storage().getWeakStorageImpl());
    rows.reset();
    matrix.reset();
    return std::pair(!rows_memory.expired(), !matrix_memory.expired());
  };
  EXPECT_EQ(is_kept(true, true), std::pair(true, true));
  EXPECT_EQ(is_kept(false, true), std::pair(true, false));
  EXPECT_EQ(is_kept(true, false), std::pair(false, true));
  EXPECT_EQ(is_kept(false, false), std::pair(false, false));
}

INSTANTIATE_TEST_SUITE_P(By, Product, ::testing::Bool(),
                         [](const auto& library) { return library.param ? "OneDnn" : "Blas"; });

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
  const WithoutOneDnn without;
  EXPECT_FALSE(gradient(false));
}

TEST(LargeProduct, IsBlassWhereOneDnnIsSwitchedOffOrTheTargetIsNotAvx512) {
  const bool preferred = prefers_onednn();
  EXPECT_TRUE(!preferred || cpu_target() == "avx512");
  {
    const WithoutOneDnn without;
    EXPECT_FALSE(prefers_onednn());
  }
  {
    const testing::UseTarget slowest(cpu_targets().back());
    EXPECT_EQ(prefers_onednn(), preferred && cpu_targets().size() == 1);
  }
  EXPECT_EQ(prefers_onednn(), preferred);
}

template <typename Holder>
class LargeProductOf : public ::testing::Test {};
using Modules =
    ::testing::Types<SharedProjectionAttention, FullProjectionAttention, InferredLengthAttention>;
TYPED_TEST_SUITE(LargeProductOf, Modules);

TYPED_TEST(LargeProductOf, AModuleIsOneDnnsWhereItIsPreferred) {
  TypeParam module(256, 4);
  const auto x = torch::randn({1, 64, 256});
  const auto forward = [&] { module->forward(x, x, x); };
  EXPECT_EQ(uses_onednn(forward), prefers_onednn());
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(uses_onednn(forward), prefers_onednn());
}

}  // namespace
}  // namespace self_attention
