// Modules where memory is refused, among many threads, and in a forked process.

#include <gtest/gtest.h>
#include <self_attention/self_attention.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/autograd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "support/all_modules.h"
#include "support/refusing_allocator.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

using testing::bit_equal;
using torch::Tensor;

/// The output and the gradients of inputs of one's own.
std::vector<Tensor> compute(auto& module, const Tensor& inputs, const Tensor& mask) {
  const Tensor values = inputs[0].detach().requires_grad_();
  const Tensor keys = inputs[1].detach().requires_grad_();
  const Tensor query = inputs[2].detach().requires_grad_();
  const Tensor output = module->forward(values, keys, query, mask);
  auto results = torch::autograd::grad({output}, {values, keys, query}, {inputs[3]});
  results.push_back(output.detach());
  return results;
}

bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!bit_equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

template <typename Holder>
class Faults : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }
  void TearDown() override { torch::set_num_threads(threads_); }

  /// Four of (N, L, E): values, keys, query and the output's gradient.
  static Tensor inputs(int64_t length) { return torch::randn({4, 2, length, 16}); }
  static Tensor mask(int64_t length) {
    return mask_from_lengths(torch::tensor({length, length - 3}), length);
  }

  Holder module_{16, 4};

 private:
  int threads_ = torch::get_num_threads();
};

TYPED_TEST_SUITE(Faults, testing::AllModules, testing::ModuleNames);

TYPED_TEST(Faults, RefusedMemoryIsAnErrorAndNothingElse) {
  for (const auto backend : {Backend::Auto, Backend::Eager}) {
    this->module_->options.backend(backend);
    for (const int64_t length : {9, 70}) {
      if (backend == Backend::Eager && length > 9) continue;
      const Tensor inputs = this->inputs(length);
      const Tensor mask = this->mask(length);
      const auto expected = compute(this->module_, inputs, mask);
      std::vector<Tensor> found;
      const std::size_t tensors = testing::refuse_each_tensor(
          [&] { found = compute(this->module_, inputs, mask); },
          [&](std::size_t n, bool happened, bool thrown) {
            EXPECT_EQ(thrown, happened) << "tensor " << n;
            EXPECT_TRUE(equal(compute(this->module_, inputs, mask), expected)) << "tensor " << n;
          });
      EXPECT_GT(tensors, 10U);
      EXPECT_TRUE(equal(found, expected));
    }
  }
}

TYPED_TEST(Faults, SizesBeyondMemoryAreErrors) {
  const Tensor inputs = this->inputs(9);
  const Tensor mask = this->mask(9);
  const auto expected = compute(this->module_, inputs, mask);
  constexpr int64_t kLength = int64_t{1} << 48;
  const Tensor long_one = torch::randn({1, 1, 16}).expand({1, kLength, 16});
  const Tensor heads = torch::randn({1, 1, 1, 4}).expand({1, 1, kLength, 4});
  const Tensor short_one = torch::randn({1, 1, 5, 4});
  const auto options = AttentionOptions(0.5);
  for (const bool records : {false, true}) {
    const torch::AutoGradMode mode(records);
    EXPECT_THROW(this->module_->forward(long_one, long_one, long_one), c10::Error);
    EXPECT_THROW(attention(heads, short_one, short_one, {}, options), c10::Error);
    EXPECT_THROW(attention(heads.detach().requires_grad_(), short_one, short_one, {}, options),
                 c10::Error);
  }
  EXPECT_TRUE(equal(compute(this->module_, inputs, mask), expected));
}

TYPED_TEST(Faults, SixtyFourThreadsMayShareAModule) {
  constexpr std::size_t kThreads = 64;
  torch::set_num_threads(1);
  std::vector<Tensor> inputs;
  std::vector<Tensor> masks;
  std::vector<std::vector<Tensor>> expected;
  for (std::size_t i = 0; i < kThreads; ++i) {
    const auto length = static_cast<int64_t>(4 + i % 40);
    inputs.push_back(this->inputs(length));
    masks.push_back(i % 3 == 0 ? Tensor() : this->mask(length));
    expected.push_back(compute(this->module_, inputs[i], masks[i]));
  }
  std::vector<int> right(kThreads, 0);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (int call = 0; call < 10; ++call) {
          right[i] += equal(compute(this->module_, inputs[i], masks[i]), expected[i]) ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(right, std::vector<int>(kThreads, 10));
}

/// The exit status of a child process, or -1 where it hangs.
int status_of(pid_t child) {
  constexpr int kSeconds = 60;
  for (int i = 0; i < 100 * kSeconds; ++i) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return -1;
}

// The threads of OpenMP do not live on in a child, where LibTorch waits for them for ever once its
// parent has used them. A child that first sets one thread is what works.
TYPED_TEST(Faults, AForkedChildOfOneThreadComputesTheSame) {
  const Tensor inputs = this->inputs(70);
  const Tensor mask = this->mask(70);
  torch::set_num_threads(1);
  const auto expected = compute(this->module_, inputs, mask);
  torch::set_num_threads(2);
  // Enough for LibTorch to share it out.
  torch::ones({1 << 20}).add_(1);
  compute(this->module_, inputs, mask);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    torch::set_num_threads(1);
    ::_exit(equal(compute(this->module_, inputs, mask), expected) ? 0 : 1);
  }
  EXPECT_EQ(status_of(child), 0);
}

}  // namespace
}  // namespace self_attention
