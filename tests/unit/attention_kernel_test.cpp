// The attention kernels on plain memory: every instruction set this machine has, between guard
// pages, and shared by std::thread.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/kernel/float16.h"
#include "backends/cpu/kernel/schedule.h"
#include "unit/attention_call.h"

namespace self_attention::cpu {
namespace {

void run(TaskList& list) {
  Workspace space;
  run(list, space);
}

void run_on_threads(TaskList& list, std::size_t count) {
  for (std::size_t round = 0; round < TaskList::kRounds; ++round) {
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        Workspace space;
        for (std::size_t task = next++; task < list.tasks(round); task = next++) {
          list.run(round, task, space);
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

/// Likewise of gradients, in which a result of 16 bits is an operand too.
double allowed_gradient(const Case& c, std::size_t input, const std::vector<double>& expected) {
  // Low scores are multiplied with 1e-15, and keys and queries are about 1e10.
  double scale = c.low_scores && input < 2 ? 1e-5 : 1;
  for (const double x : expected) scale = std::max(scale, std::abs(x));
  if (c.kind == ElementKind::kFloat32) return 2e-5 * scale;
  return (c.kind == ElementKind::kBFloat16 ? 0x1p-6 : 0x1p-9) * scale;
}

class AttentionKernels : public ::testing::TestWithParam<const Kernel*> {};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<Shape> shapes = {
      {1, 2, 9, 9, 32, 32},   {2, 3, 5, 17, 7, 7},  {1, 2, 49, 33, 16, 80},
      {1, 1, 13, 257, 3, 1},  {2, 2, 1, 7, 64, 64}, {1, 2, 4, 515, 59, 33},
      {1, 1, 97, 530, 8, 20}, {1, 1, 3, 1, 1, 1},   {1, 1, 50, 272, 2, 16}};
  for (const Shape& shape : shapes) {
    for (const auto kind : {ElementKind::kFloat32, ElementKind::kBFloat16, ElementKind::kFloat16}) {
      for (const auto mask :
           {MaskKind::kNone, MaskKind::kPadding, MaskKind::kRows, MaskKind::kFull}) {
        for (const bool causal : {false, true}) {
          all.push_back({shape, kind, mask, causal});
          // Dropped weights are float32 whatever the inputs.
          if (kind == ElementKind::kFloat32) all.push_back({shape, kind, mask, causal, 0.3});
        }
      }
    }
  }
  // More blocks of keys than one, where causality begins.
  all.push_back({{1, 1, 300, 290, 4, 4}, ElementKind::kFloat32, MaskKind::kNone, true});
  // Keys and values so wide that they are packed in parts, or read where they lie.
  for (const std::size_t keys : {784, 785, 800}) {
    all.push_back({{1, 1, 6, keys, 500, 16}, ElementKind::kFloat32, MaskKind::kNone, false});
  }
  // Whose queries run in blocks, and alone.
  for (const Shape& shape : {Shape{1, 2, 9, 280, 1, 3}, {1, 1, 3, 520, 1, 2}}) {
    for (const auto mask :
         {MaskKind::kNone, MaskKind::kPadding, MaskKind::kRows, MaskKind::kFull}) {
      for (const bool causal : {false, true}) {
        for (const double dropout_p : {0.0, 0.3}) {
          all.push_back({shape, ElementKind::kFloat32, mask, causal, dropout_p, true});
        }
      }
    }
  }
  return all;
}

struct Expected {
  Case c;
  std::vector<double> output;
  std::array<std::vector<double>, 3> gradients;
};

/// What the formula gives for all cases, worked out once: it costs more than every kernel.
const std::vector<Expected>& expected_results() {
  static const std::vector<Expected> all = [] {
    std::vector<Expected> results;
    for (const Case& c : cases()) {
      const Call call(c, false);
      results.push_back({c, call.expected(), call.expected_gradients()});
    }
    return results;
  }();
  return all;
}

TEST_P(AttentionKernels, GiveTheFormulasResultAndStayInTheirMemory) {
  for (const auto& [c, expected, gradients] : expected_results()) {
    for (const bool at_end : {false, true}) {
      Call call(c, at_end);
      for (const AttentionProblem& problem : {call.inference_problem(), call.problem()}) {
        if (!at_end && problem.row_maxima != nullptr) continue;
        Schedule schedule(problem, *GetParam(), 1);
        run(schedule);
        const std::vector<double> actual = call.output();
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < actual.size(); ++i) {
          ASSERT_LE(std::abs(actual[i] - expected[i]), allowed(c.kind, expected[i]))
              << GetParam()->name << " " << c << " at " << i << ": " << actual[i] << " instead of "
              << expected[i];
        }
      }
    }
  }
}

TEST_P(AttentionKernels, GiveTheFormulasGradientsAndStayInTheirMemory) {
  for (const auto& [c, output, expected] : expected_results()) {
    for (const bool at_end : {false, true}) {
      Call call(c, at_end);
      Schedule schedule(call.problem(), *GetParam(), 1);
      run(schedule);
      const GradientProblem problem = call.gradient_problem();
      GradientSchedule list(problem, *GetParam());
      run(list);
      const auto actual = call.gradients();
      for (std::size_t input = 0; input < actual.size(); ++input) {
        const double most = allowed_gradient(c, input, expected[input]);
        ASSERT_EQ(actual[input].size(), expected[input].size());
        for (std::size_t i = 0; i < actual[input].size(); ++i) {
          ASSERT_LE(std::abs(actual[input][i] - expected[input][i]), most)
              << GetParam()->name << " " << c << " input " << input << " at " << i << ": "
              << actual[input][i] << " instead of " << expected[input][i];
        }
      }
    }
  }
}

TEST_P(AttentionKernels, GiveTheSameBitsOnEveryNumberOfThreads) {
  const std::vector<Case> shared = {
      {{1, 2, 900, 300, 16, 16}, ElementKind::kFloat32, MaskKind::kFull, true},
      {{1, 3, 400, 70, 8, 8}, ElementKind::kBFloat16, MaskKind::kPadding, false},
      {{1, 1, 400, 70, 8, 8}, ElementKind::kFloat32, MaskKind::kRows, false},
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
      const GradientProblem problem = call.gradient_problem();
      GradientSchedule list(problem, *GetParam());
      run(list);
      const auto gradients = call.gradients();
      run_on_threads(list, threads);
      EXPECT_EQ(call.gradients(), gradients) << c << " on " << threads;
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
