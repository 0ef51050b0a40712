// The same bits from run to run and on every number of LibTorch's threads.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/parallel_tasks.h"
#include "support/failing_allocations.h"

namespace self_attention::cpu {
namespace {

struct Sizes {
  std::size_t heads;
  std::size_t queries;
  std::size_t keys;
  bool causal;
};

/// Queries, keys and values, with room for the output.
class Call {
 public:
  explicit Call(const Sizes& sizes) : output(sizes.heads * sizes.queries * kDim) {
    const auto& [heads, queries, keys, causal] = sizes;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (std::vector<float>* tensor : {&query_, &key_, &value_}) {
      tensor->resize(heads * std::max(queries, keys) * kDim);
      for (float& x : *tensor) x = normal(random);
    }
    const auto strides = [](std::size_t rows) {
      const auto row = static_cast<std::int64_t>(kDim);
      return Strides{0, static_cast<std::int64_t>(rows) * row, row, 1};
    };
    problem.query = {query_.data(), strides(queries)};
    problem.key = {key_.data(), strides(keys)};
    problem.value = {value_.data(), strides(keys)};
    problem.output = output.data();
    problem.output_strides = strides(queries);
    problem.batch = 1;
    problem.heads = heads;
    problem.query_length = queries;
    problem.key_length = keys;
    problem.head_dim = problem.value_dim = kDim;
    problem.scale = 0.25F;
    problem.causal = causal;
    maxima_.resize(heads * queries);
    sums_.resize(heads * queries);
    gradients.resize(query_.size() + key_.size() + value_.size());
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Of the inputs for an output's gradient of ones; the rows' maxima and sums must be known.
  GradientProblem gradient_problem() {
    GradientProblem all;
    all.call = problem;
    all.output = {output.data(), problem.output_strides};
    all.grad_output = {&kOne, {0, 0, 0, 0}};
    all.grad_query = {gradients.data(), problem.query.strides};
    all.grad_key = {gradients.data() + query_.size(), problem.key.strides};
    all.grad_value = {gradients.data() + query_.size() + key_.size(), problem.value.strides};
    return all;
  }

  void keep_sums() {
    problem.row_maxima = maxima_.data();
    problem.row_sums = sums_.data();
  }

  AttentionProblem problem;
  std::vector<float> output;
  std::vector<float> gradients;

 private:
  static constexpr float kOne = 1;
  static constexpr std::size_t kDim = 16;
  std::vector<float> query_, key_, value_, maxima_, sums_;
};

/// How many threads took part in the call.
std::size_t run_anew(Call& call, const Kernel& kernel) {
  std::fill(call.output.begin(), call.output.end(), -1.0F);
  Schedule schedule(call.problem, kernel, available_threads());
  return run_tasks(schedule);
}

class Threads : public ::testing::TestWithParam<const Kernel*> {
 protected:
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_P(Threads, DoNotChangeABit) {
  for (const Sizes& sizes : {Sizes{2, 900, 300, true}, {8, 64, 64, false}, {4, 1, 5000, false}}) {
    Call call(sizes);
    at::set_num_threads(1);
    const auto run = [&] { return run_anew(call, *GetParam()); };
    EXPECT_EQ(run(), 1U);
    const std::vector<float> expected = call.output;
    for (const int threads : {1, 2, 3, 4, 8}) {
      at::set_num_threads(threads);
      for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(run(), static_cast<std::size_t>(threads)) << "threads that took part";
        ASSERT_EQ(call.output, expected) << GetParam()->name << " on " << threads << " threads";
      }
    }
  }
}

TEST_P(Threads, OfAnyNumberTakePart) {
  Call call({40, 9, 9, false});
  const auto run = [&] { return run_anew(call, *GetParam()); };
  at::set_num_threads(1);
  run();
  const std::vector<float> expected = call.output;
  for (const int threads : {16, 17, 39}) {
    at::set_num_threads(threads);
    EXPECT_EQ(run(), static_cast<std::size_t>(threads)) << "threads that took part";
    EXPECT_EQ(call.output, expected) << threads << " threads";
  }
}

TEST_P(Threads, DoNotChangeABitOfGradients) {
  for (const Sizes& sizes : {Sizes{2, 300, 1300, true}, {20, 64, 64, false}, {3, 2, 2100, false}}) {
    Call call(sizes);
    call.keep_sums();
    at::set_num_threads(1);
    Schedule schedule(call.problem, *GetParam(), available_threads());
    run_tasks(schedule);
    const GradientProblem problem = call.gradient_problem();
    const auto run = [&] {
      std::fill(call.gradients.begin(), call.gradients.end(), -1.0F);
      GradientSchedule list(problem, *GetParam());
      return run_tasks(list);
    };
    EXPECT_EQ(run(), 1U);
    const std::vector<float> expected = call.gradients;
    for (const int threads : {1, 2, 3, 4, 8}) {
      at::set_num_threads(threads);
      for (int i = 0; i < 10; ++i) {
        run();
        ASSERT_EQ(call.gradients, expected) << GetParam()->name << " on " << threads << " threads";
      }
    }
  }
}

TEST_P(Threads, AreLeftAloneInsideAParallelRegion) {
  at::set_num_threads(2);
  const Sizes sizes = {4, 64, 64, false};
  Call call(sizes);
  Schedule alone(call.problem, *GetParam(), 1);
  run_tasks(alone);
  std::vector<std::vector<float>> outputs(2);
  at::parallel_for(0, 2, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Call mine(sizes);
      Schedule schedule(mine.problem, *GetParam(), available_threads());
      EXPECT_EQ(run_tasks(schedule), 1U);
      outputs[static_cast<std::size_t>(i)] = mine.output;
    }
  });
  for (const std::vector<float>& output : outputs) EXPECT_EQ(output, call.output);
}

TEST_P(Threads, WithoutMemoryThrowAndComputeRightNextTime) {
  const Sizes sizes = {4, 8, 1100, false};
  Call call(sizes);
  call.keep_sums();
  const GradientProblem problem = call.gradient_problem();
  const auto compute = [&] {
    Schedule schedule(call.problem, *GetParam(), available_threads());
    run_tasks(schedule);
    GradientSchedule gradients(problem, *GetParam());
    run_tasks(gradients);
    return std::pair(call.output, call.gradients);
  };
  const auto expected = compute();
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    // A new thread has new threads to share with, which have no memory yet.
    const auto in_new_thread = [&] {
      std::exception_ptr failure;
      std::thread([&] {
        try {
          compute();
        } catch (...) {
          failure = std::current_exception();
          // Only one allocation fails.
          EXPECT_EQ(compute(), expected) << threads << " threads";
        }
      }).join();
      if (failure) std::rethrow_exception(failure);
    };
    const std::size_t allocations = testing::fail_each_allocation(
        testing::Failing::kOne, in_new_thread, [](const std::string& /*what*/) {});
    EXPECT_GT(allocations, 20U) << threads << " threads";
  }
}

TEST_P(Threads, KeepLittleMemoryBetweenCalls) {
  at::set_num_threads(1);
  const auto allocates_again = [&](const Sizes& sizes) {
    Call call(sizes);
    call.keep_sums();
    Schedule schedule(call.problem, *GetParam(), 1);
    run_tasks(schedule);
    const GradientProblem problem = call.gradient_problem();
    GradientSchedule gradients(problem, *GetParam());
    run_tasks(gradients);
    const testing::AllocationFailure failure(1);
    try {
      run_tasks(gradients);
    } catch (const std::bad_alloc&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(allocates_again({1, 60, 16, false}));
  // Sums of more than 4 MiB.
  EXPECT_TRUE(allocates_again({1, 70'000, 4, false}));
}

INSTANTIATE_TEST_SUITE_P(, Threads, ::testing::ValuesIn(kernels().begin(), kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace self_attention::cpu
