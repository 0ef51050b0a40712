// The kernels where memory runs out: std::bad_alloc, and the right result afterwards.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backends/cpu/kernel/schedule.h"
#include "support/failing_allocations.h"
#include "unit/attention_call.h"

namespace self_attention::cpu {
namespace {

using testing::fail_each_allocation;
using testing::Failing;

class KernelsWithoutMemory : public ::testing::TestWithParam<const Kernel*> {};

TEST_P(KernelsWithoutMemory, ThrowAndComputeRightNextTime) {
  const std::vector<Case> cases = {
      {{1, 2, 60, 300, 8, 8}, ElementKind::kFloat32, MaskKind::kFull, true, 0.3},
      {{2, 1, 9, 30, 7, 5}, ElementKind::kBFloat16, MaskKind::kPadding, false},
      {{1, 1, 5, 1100, 8, 8}, ElementKind::kFloat32, MaskKind::kRows, false},
      {{1, 2, 2, 1100, 8, 8}, ElementKind::kFloat16, MaskKind::kPadding, true}};
  for (const Case& c : cases) {
    for (const bool trains : {false, true}) {
      Call call(c, true);
      const AttentionProblem problem = trains ? call.problem() : call.inference_problem();
      const GradientProblem gradients = call.gradient_problem();
      const auto compute = [&](Workspace& space) {
        Schedule schedule(problem, *GetParam(), 1);
        run(schedule, space);
        if (!trains) return;
        GradientSchedule backward(gradients, *GetParam());
        run(backward, space);
      };
      const auto results = [&] { return std::pair(call.output(), call.gradients()); };
      Workspace first;
      compute(first);
      const auto expected = results();
      Workspace space;
      const std::size_t allocations = fail_each_allocation(
          Failing::kOne,
          [&] {
            space = Workspace();
            compute(space);
          },
          [&](const std::string& what) {
            // In what the failure left of the workspace.
            compute(space);
            EXPECT_EQ(results(), expected) << GetParam()->name << " " << c << " " << what;
          });
      EXPECT_GT(allocations, 5U) << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KernelsWithoutMemory,
                         ::testing::ValuesIn(kernels().begin(), kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace self_attention::cpu
