// The fused kernel against the float64 formula: every instruction set of this machine, mask shapes
// of every rank, lengths around every block's edge, head sizes, strides, poisoned memory around.

#include <gtest/gtest.h>
#include <self_attention/ops/attention.h>
#include <self_attention/ops/cpu_target.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "io/torch_types.h"
#include "support/tensor_matchers.h"
#include "support/use_target.h"
#include "tools/parity/tolerance.h"

namespace self_attention {
namespace {

using testing::near;
using testing::UseTarget;

struct Lengths {
  int64_t batch;
  int64_t heads;
  int64_t queries;
  int64_t keys;
};

/// Around the limits of the path for few queries (4), of register blocks (6, 12), of query blocks
/// (48), of panels (16, 32) and of key blocks (256, 512), the last up to 16 longer.
const std::vector<Lengths> kLengths = {
    {2, 2, 1, 1},    {1, 2, 1, 31},   {2, 1, 1, 511},  {1, 2, 1, 513}, {1, 2, 3, 1025},
    {2, 2, 4, 16},   {2, 2, 5, 15},   {1, 3, 6, 17},   {1, 2, 7, 32},  {2, 2, 11, 33},
    {1, 2, 12, 255}, {1, 2, 13, 256}, {1, 2, 47, 257}, {1, 1, 48, 64}, {2, 1, 49, 31},
    {1, 1, 95, 511}, {1, 1, 97, 513}, {1, 2, 33, 1},   {1, 1, 200, 9}, {3, 1, 64, 64},
    {1, 2, 14, 272}, {2, 1, 46, 273}, {1, 1, 50, 529}};

/// How a tensor lies in memory.
enum class Layout { kAsModulesGiveIt, kContiguous, kSliced, kEverySecondColumn, kExpandedBatch };
constexpr int kLayouts = 5;

/// (N, H, L, d) with numbers of mean 0; what the view does not show is NaN.
torch::Tensor make_input(const Lengths& lengths, int64_t length, int64_t columns, Layout layout,
                         torch::ScalarType dtype) {
  const auto poisoned = [&](torch::IntArrayRef shape) {
    return torch::full(shape, std::numeric_limits<double>::quiet_NaN(), dtype);
  };
  const auto [n, h, q, k] = lengths;
  torch::Tensor view;
  switch (layout) {
    case Layout::kAsModulesGiveIt:
      view = poisoned({n, length, h, columns}).transpose(1, 2);
      break;
    case Layout::kContiguous:
      view = poisoned({n, h, length, columns});
      break;
    case Layout::kSliced:
      view = poisoned({n, length + 2, h + 1, columns + 3})
                 .slice(1, 1, length + 1)
                 .slice(2, 0, h)
                 .slice(3, 2, columns + 2)
                 .transpose(1, 2);
      break;
    case Layout::kEverySecondColumn:
      view = poisoned({n, h, length, 2 * columns}).slice(3, 0, 2 * columns, 2);
      break;
    case Layout::kExpandedBatch:
      view = poisoned({1, h, length, columns});
      view.copy_(torch::randn(view.sizes()));
      return view.expand({n, h, length, columns});
  }
  view.copy_(torch::randn(view.sizes()));
  return view;
}

/// The shapes of ranks 0 to 4 that broadcast to (N, H, Q, K).
std::vector<std::vector<int64_t>> mask_shapes(const Lengths& lengths) {
  const auto [n, h, q, k] = lengths;
  return {{},           {1},          {k},          {q, k},       {q, 1},       {1, k},
          {h, q, k},    {h, 1, k},    {h, q, 1},    {1, q, k},    {h, 1, 1},    {n, 1, 1, k},
          {n, h, 1, k}, {n, 1, q, k}, {1, h, q, k}, {n, h, q, k}, {n, 1, q, 1}, {n, 1, 1, 1},
          {1, 1, 1, k}, {1, h, q, 1}, {n, h, 1, 1}};
}

const std::vector<torch::ScalarType> kMaskTypes = {torch::kBool,    torch::kFloat32, torch::kInt64,
                                                   torch::kFloat16, torch::kUInt8,   torch::kInt32,
                                                   torch::kFloat64, torch::kBFloat16};

/// About a quarter masked, with −0.0 and, where the type has it, NaN; sometimes all of it.
torch::Tensor make_mask(const std::vector<int64_t>& shape, std::size_t index) {
  const torch::ScalarType type = kMaskTypes[index % kMaskTypes.size()];
  torch::Tensor mask = (torch::rand(shape) > 0.25).to(type);
  if (index % 11 == 10) mask.zero_();
  if (mask.is_floating_point()) {
    mask.masked_fill_(mask == 0, -0.0);
    mask.masked_fill_(torch::rand(shape).gt(0.8).logical_and(mask != 0),
                      std::numeric_limits<double>::quiet_NaN());
  }
  return mask;
}

/// One call of the grid.
struct GridCase {
  std::string name;
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor mask;
  AttentionOptions options;

  /// In float64, where the formula runs.
  GridCase exact() const {
    const auto wide = [](const torch::Tensor& tensor) {
      return tensor.detach().to(torch::kFloat64);
    };
    return {name, wide(query), wide(key), wide(value), mask, options};
  }
  torch::Tensor output() const { return attention(query, key, value, mask, options); }
  std::string kernel() const { return attention_kernel(query, key, value, mask, options).name; }
};

/// The case of that number: mask shapes in turn, each with and without causality.
GridCase make_case(std::size_t index, std::size_t shape, bool causal, int64_t head_dim,
                   torch::ScalarType dtype) {
  const Lengths& lengths = kLengths[index % kLengths.size()];
  const int64_t value_dim = index % 3 == 0 ? head_dim : 1 + static_cast<int64_t>(index * 7 % 90);
  const auto layout = [&](std::size_t turn) {
    return static_cast<Layout>((index + turn) % kLayouts);
  };
  const auto query = make_input(lengths, lengths.queries, head_dim, layout(0), dtype);
  const auto key = make_input(lengths, lengths.keys, head_dim, layout(1), dtype);
  const auto value = make_input(lengths, lengths.keys, value_dim, layout(index), dtype);
  const auto shapes = mask_shapes(lengths);
  const auto mask = shape < shapes.size() ? make_mask(shapes[shape], index) : torch::Tensor();
  const std::string name =
      c10::str("case ", index, ": N ", lengths.batch, " H ", lengths.heads, " Q ", lengths.queries,
               " K ", lengths.keys, " dv ", value_dim, " causal ", causal, " mask ",
               mask.defined() ? c10::str(mask.sizes(), mask.scalar_type()) : "none");
  const auto options =
      AttentionOptions(1 / std::sqrt(static_cast<double>(head_dim))).is_causal(causal);
  return {name, query, key, value, mask, options};
}

class AttentionGrid
    : public ::testing::TestWithParam<std::tuple<std::string, int64_t, torch::ScalarType>> {
 protected:
  /// Calls `check` with every case of the target, head size and dtype.
  template <typename Check>
  void for_each_case(const Check& check) {
    const auto& [target, head_dim, dtype] = GetParam();
    const UseTarget use(target);
    torch::manual_seed(head_dim);
    auto index = static_cast<std::size_t>(head_dim);
    for (std::size_t shape = 0; shape <= mask_shapes({}).size(); ++shape) {
      for (const bool causal : {false, true}) {
        const GridCase c = make_case(++index, shape, causal, head_dim, dtype);
        ASSERT_EQ(c.kernel(), "cpu/" + target);
        check(c);
        if (HasFatalFailure()) return;
      }
    }
  }

  double tolerance(parity::Quantity quantity) const {
    return parity::tolerance(*io::element_type(std::get<2>(GetParam())), quantity);
  }
};

TEST_P(AttentionGrid, EqualsTheFloat64Formula) {
  for_each_case([&](const GridCase& c) {
    const auto expected = c.exact().output();
    const double scale = std::max(1.0, expected.abs().max().item<double>());
    ASSERT_TRUE(near(c.output(), expected, tolerance(parity::Quantity::kFusedOutput) * scale))
        << c.name;
  });
}

std::string grid_name(const ::testing::TestParamInfo<AttentionGrid::ParamType>& info) {
  return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param)) + "_" +
         c10::toString(std::get<2>(info.param));
}

const auto kGridTypes = ::testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat16);

INSTANTIATE_TEST_SUITE_P(
    , AttentionGrid,
    ::testing::Combine(::testing::ValuesIn(cpu_targets()),
                       ::testing::Values(1, 3, 7, 16, 32, 59, 64, 80, 111, 128, 256), kGridTypes),
    grid_name);

class AttentionGradientGrid : public AttentionGrid {};

TEST_P(AttentionGradientGrid, EqualsTheFloat64Formula) {
  for_each_case([&](const GridCase& c) {
    const auto output_gradient = torch::randn(c.output().sizes(), torch::kFloat64)
                                     .to(c.query.scalar_type())
                                     .transpose(1, 2)
                                     .contiguous()
                                     .transpose(1, 2);
    const auto gradients = [&](const GridCase& call) {
      std::vector<torch::Tensor> leaves;
      for (const auto& tensor : {call.query, call.key, call.value}) {
        leaves.push_back(tensor.detach().requires_grad_());
      }
      const auto output = attention(leaves[0], leaves[1], leaves[2], call.mask, call.options);
      return torch::autograd::grad({output}, leaves, {output_gradient.to(output.scalar_type())});
    };
    const auto actual = gradients(c);
    const auto expected = gradients(c.exact());
    double scale = 1;
    for (const auto& tensor : expected) {
      scale = std::max(scale, tensor.abs().max().item<double>());
    }
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(near(actual[i], expected[i], tolerance(parity::Quantity::kGradient) * scale))
          << "gradient " << i << ", " << c.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, AttentionGradientGrid,
                         ::testing::Combine(::testing::ValuesIn(cpu_targets()),
                                            ::testing::Values(1, 7, 32, 64, 111), kGridTypes),
                         grid_name);

class AttentionLong : public ::testing::TestWithParam<std::string> {};

TEST_P(AttentionLong, ManySequencesAndManyKeys) {
  const UseTarget use(GetParam());
  torch::manual_seed(0);
  const std::vector<Lengths> all = {
      {70000, 1, 1, 2}, {70000, 1, 5, 3}, {1, 1, 1, 65537}, {1, 1, 6, 65537}, {1, 70000, 2, 1}};
  for (const Lengths& lengths : all) {
    const auto layout = Layout::kAsModulesGiveIt;
    const auto query = make_input(lengths, lengths.queries, 4, layout, torch::kFloat32);
    const auto key = make_input(lengths, lengths.keys, 4, layout, torch::kFloat32);
    const auto value = make_input(lengths, lengths.keys, 4, layout, torch::kFloat32);
    const auto mask = torch::rand({lengths.keys}) > 0.2;
    const auto actual = attention(query, key, value, mask, AttentionOptions(0.5));
    const auto expected = attention(query.to(torch::kFloat64), key.to(torch::kFloat64),
                                    value.to(torch::kFloat64), mask, AttentionOptions(0.5));
    EXPECT_TRUE(near(actual, expected, 2e-5)) << lengths.batch << " " << lengths.keys;
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionLong, ::testing::ValuesIn(cpu_targets()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace self_attention
