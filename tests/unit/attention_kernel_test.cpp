// The attention kernels on plain memory: every instruction set this machine has, between guard
// pages, and shared by std::thread.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/kernel/float16.h"
#include "backends/cpu/kernel/schedule.h"
#include "support/guarded_memory.h"

namespace self_attention::cpu {
namespace {

using testing::GuardedMemory;

struct Shape {
  std::size_t batch;
  std::size_t heads;
  std::size_t queries;
  std::size_t keys;
  std::size_t head_dim;
  std::size_t value_dim;
};

enum class MaskKind { kNone, kPadding, kRows, kFull };

struct Case {
  Shape shape;
  ElementKind kind;
  MaskKind mask;
  bool causal;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  const Shape& s = c.shape;
  return out << s.batch << "x" << s.heads << " queries " << s.queries << " keys " << s.keys
             << " dims " << s.head_dim << " " << s.value_dim << " kind " << static_cast<int>(c.kind)
             << " mask " << static_cast<int>(c.mask) << " causal " << c.causal;
}

std::size_t element_bytes(ElementKind kind) { return kind == ElementKind::kFloat32 ? 4 : 2; }

void write_element(float value, ElementKind kind, std::byte* to) {
  if (kind == ElementKind::kFloat32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits =
      kind == ElementKind::kFloat16
          ? float16_bits(value)
          : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  std::memcpy(to, &bits, sizeof(bits));
}

double read_element(const std::byte* from, ElementKind kind) {
  if (kind == ElementKind::kFloat32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  if (kind == ElementKind::kBFloat16) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Inputs (N, L, H, d) in memory, seen as (N, H, L, d), each between guard pages.
class Call {
 public:
  Call(const Case& c, bool at_end)
      : case_(c),
        query_(bytes(c.shape.queries, c.shape.head_dim), at_end),
        key_(bytes(c.shape.keys, c.shape.head_dim), at_end),
        value_(bytes(c.shape.keys, c.shape.value_dim), at_end),
        output_(bytes(c.shape.queries, c.shape.value_dim), at_end),
        mask_(mask_elements(), at_end) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](GuardedMemory& memory, std::size_t size) {
      for (std::size_t i = 0; i < size; i += element_bytes(case_.kind)) {
        write_element(normal(random), case_.kind, memory.data() + i);
      }
    };
    fill(query_, bytes(c.shape.queries, c.shape.head_dim));
    fill(key_, bytes(c.shape.keys, c.shape.head_dim));
    fill(value_, bytes(c.shape.keys, c.shape.value_dim));
    for (std::size_t i = 0; i < mask_elements(); ++i) {
      mask_.data()[i] = static_cast<std::byte>(random() % 4 != 0 ? 1 + random() % 255 : 0);
    }
    describe();
  }

  const AttentionProblem& problem() const { return problem_; }

  std::vector<double> output() {
    std::vector<double> all;
    const std::size_t size = bytes(case_.shape.queries, case_.shape.value_dim);
    for (std::size_t i = 0; i < size; i += element_bytes(case_.kind)) {
      all.push_back(read_element(output_.data() + i, case_.kind));
    }
    return all;
  }

  /// The formula in float64, in the output's order.
  std::vector<double> expected() const {
    const Shape& s = case_.shape;
    std::vector<double> all;
    for (std::size_t n = 0; n < s.batch; ++n) {
      for (std::size_t i = 0; i < s.queries; ++i) {
        for (std::size_t h = 0; h < s.heads; ++h) append_row(n, h, i, all);
      }
    }
    return all;
  }

 private:
  std::size_t bytes(std::size_t rows, std::size_t columns) const {
    return case_.shape.batch * case_.shape.heads * rows * columns * element_bytes(case_.kind);
  }

  std::size_t mask_elements() const {
    const Shape& s = case_.shape;
    switch (case_.mask) {
      case MaskKind::kNone:
        return 0;
      case MaskKind::kPadding:
        return s.batch * s.keys;
      case MaskKind::kRows:
        return s.heads * s.queries;
      case MaskKind::kFull:
        return s.queries * s.keys;
    }
    return 0;
  }

  void describe() {
    const Shape& s = case_.shape;
    const auto i64 = [](std::size_t x) { return static_cast<std::int64_t>(x); };
    const auto strides = [&](std::size_t rows, std::size_t columns) {
      return Strides{i64(rows * s.heads * columns), i64(columns), i64(s.heads * columns), 1};
    };
    problem_.query = {query_.data(), strides(s.queries, s.head_dim)};
    problem_.key = {key_.data(), strides(s.keys, s.head_dim)};
    problem_.value = {value_.data(), strides(s.keys, s.value_dim)};
    problem_.output = output_.data();
    problem_.output_strides = strides(s.queries, s.value_dim);
    if (case_.mask != MaskKind::kNone) problem_.mask.data = mask_.data();
    if (case_.mask == MaskKind::kPadding) problem_.mask.strides = {i64(s.keys), 0, 0, 1};
    if (case_.mask == MaskKind::kRows) problem_.mask.strides = {0, i64(s.queries), 1, 0};
    if (case_.mask == MaskKind::kFull) problem_.mask.strides = {0, 0, i64(s.keys), 1};
    problem_.kind = case_.kind;
    problem_.batch = s.batch;
    problem_.heads = s.heads;
    problem_.query_length = s.queries;
    problem_.key_length = s.keys;
    problem_.head_dim = s.head_dim;
    problem_.value_dim = s.value_dim;
    problem_.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    problem_.causal = case_.causal;
  }

  static std::size_t at(const Strides& strides, std::size_t n, std::size_t h, std::size_t row,
                        std::size_t column) {
    const auto u = [](std::int64_t x) { return static_cast<std::size_t>(x); };
    return n * u(strides[0]) + h * u(strides[1]) + row * u(strides[2]) + column * u(strides[3]);
  }

  double element(const ConstView& view, std::size_t n, std::size_t h, std::size_t row,
                 std::size_t column) const {
    const auto* data = static_cast<const std::byte*>(view.data);
    return read_element(data + at(view.strides, n, h, row, column) * element_bytes(case_.kind),
                        case_.kind);
  }

  bool keeps(std::size_t n, std::size_t h, std::size_t i, std::size_t j) const {
    if (case_.causal && j > i) return false;
    if (problem_.mask.data == nullptr) return true;
    const auto* data = static_cast<const std::byte*>(problem_.mask.data);
    return data[at(problem_.mask.strides, n, h, i, j)] != std::byte{0};
  }

  void append_row(std::size_t n, std::size_t h, std::size_t i, std::vector<double>& all) const {
    const Shape& s = case_.shape;
    std::vector<double> weights(s.keys);
    for (std::size_t j = 0; j < s.keys; ++j) {
      double score = 0;
      for (std::size_t k = 0; k < s.head_dim; ++k) {
        score += element(problem_.query, n, h, i, k) * element(problem_.key, n, h, j, k);
      }
      weights[j] = (keeps(n, h, i, j) ? score : -1e20) * static_cast<double>(problem_.scale);
    }
    const double max = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (std::size_t column = 0; column < s.value_dim; ++column) {
      double result = 0;
      for (std::size_t j = 0; j < s.keys; ++j) {
        result += weights[j] / sum * element(problem_.value, n, h, j, column);
      }
      all.push_back(result);
    }
  }

  Case case_;
  GuardedMemory query_, key_, value_, output_, mask_;
  AttentionProblem problem_;
};

void run(Schedule& schedule) {
  Workspace space;
  for (std::size_t round = 0; round < Schedule::kRounds; ++round) {
    for (std::size_t task = 0; task < schedule.tasks(round); ++task) {
      schedule.run(round, task, space);
    }
  }
}

void run_on_threads(Schedule& schedule, std::size_t count) {
  for (std::size_t round = 0; round < Schedule::kRounds; ++round) {
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        Workspace space;
        for (std::size_t task = next++; task < schedule.tasks(round); task = next++) {
          schedule.run(round, task, space);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

/// What rounding the result, and float32 on the way, may cost.
double allowed(ElementKind kind, double value) {
  const double scale = std::max(1.0, std::abs(value));
  if (kind == ElementKind::kFloat32) return 4e-6 * scale;
  return (kind == ElementKind::kBFloat16 ? 0x1p-8 : 0x1p-11) * scale;
}

class AttentionKernels : public ::testing::TestWithParam<const Kernel*> {};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<Shape> shapes = {
      {1, 2, 9, 9, 32, 32}, {2, 3, 5, 17, 7, 7},    {1, 2, 49, 33, 16, 80}, {1, 1, 13, 257, 3, 1},
      {2, 2, 1, 7, 64, 64}, {1, 2, 4, 515, 59, 33}, {1, 1, 97, 530, 8, 20}, {1, 1, 3, 1, 1, 1}};
  for (const Shape& shape : shapes) {
    for (const auto kind : {ElementKind::kFloat32, ElementKind::kBFloat16, ElementKind::kFloat16}) {
      for (const auto mask :
           {MaskKind::kNone, MaskKind::kPadding, MaskKind::kRows, MaskKind::kFull}) {
        for (const bool causal : {false, true}) all.push_back({shape, kind, mask, causal});
      }
    }
  }
  return all;
}

TEST_P(AttentionKernels, GiveTheFormulasResultAndStayInTheirMemory) {
  for (const Case& c : cases()) {
    for (const bool at_end : {false, true}) {
      Call call(c, at_end);
      Schedule schedule(call.problem(), *GetParam(), 1);
      run(schedule);
      const std::vector<double> actual = call.output();
      const std::vector<double> expected = call.expected();
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_LE(std::abs(actual[i] - expected[i]), allowed(c.kind, expected[i]))
            << GetParam()->name << " " << c << " at " << i << ": " << actual[i] << " instead of "
            << expected[i];
      }
    }
  }
}

TEST_P(AttentionKernels, GiveTheSameBitsOnEveryNumberOfThreads) {
  const std::vector<Case> shared = {
      {{1, 2, 900, 300, 16, 16}, ElementKind::kFloat32, MaskKind::kFull, true},
      {{1, 3, 400, 70, 8, 8}, ElementKind::kBFloat16, MaskKind::kPadding, false},
      {{2, 2, 1, 2000, 16, 16}, ElementKind::kFloat32, MaskKind::kPadding, false}};
  for (const Case& c : shared) {
    Call call(c, true);
    Schedule alone(call.problem(), *GetParam(), 1);
    run(alone);
    const std::vector<double> expected = call.output();
    for (const std::size_t threads : {2, 3, 8}) {
      Schedule schedule(call.problem(), *GetParam(), threads);
      run_on_threads(schedule, threads);
      EXPECT_EQ(call.output(), expected) << c << " on " << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionKernels,
                         ::testing::ValuesIn(kernels().begin(), kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(float16_bits(1.0F), 0x3c00);
  EXPECT_EQ(float16_bits(-2.0F), 0xc000);
  EXPECT_EQ(float16_bits(1.0F + 0x1p-11F), 0x3c00);             // a tie, to even
  EXPECT_EQ(float16_bits(1.0F + 3 * 0x1p-11F), 0x3c02);         // a tie, to even
  EXPECT_EQ(float16_bits(1.0F + 0x1p-11F + 0x1p-20F), 0x3c01);  // above it
  EXPECT_EQ(float16_bits(65504.0F), 0x7bff);
  EXPECT_EQ(float16_bits(65519.0F), 0x7bff);
  EXPECT_EQ(float16_bits(65520.0F), 0x7c00);
  EXPECT_EQ(float16_bits(0x1p-24F), 0x0001);
  EXPECT_EQ(float16_bits(0x1p-25F), 0x0000);
  EXPECT_EQ(float16_bits(0x1p-14F - 0x1p-26F), 0x0400);
  EXPECT_EQ(float16_bits(-0.0F), 0x8000);
  EXPECT_EQ(float16_bits(INFINITY), 0x7c00);
  EXPECT_GT(float16_bits(NAN) & 0x7fff, 0x7c00);
}

}  // namespace
}  // namespace self_attention::cpu
