#include "tools/parity/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tools/parity/rule.h"
#include "tools/parity/tolerance.h"

namespace self_attention::parity {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
using Elements = std::vector<double>;

TEST(CompareBits, PassesEqualElements) {
  const Elements elements = {1.5, -0.0, 0.0, kInf, -kInf, 5e-324};
  const Comparison result = compare_bits(elements, elements);
  EXPECT_TRUE(result.passed);
  EXPECT_EQ(result.error, 0);
  EXPECT_EQ(result.index, -1);
  EXPECT_EQ(result.severity(), 0);
}

TEST(CompareBits, PassesAnyNanForAnyNan) {
  EXPECT_TRUE(compare_bits(Elements{std::copysign(kNan, -1)}, Elements{kNan}).passed);
}

TEST(CompareBits, FailsTheSignOfZero) {
  const Comparison result = compare_bits(Elements{1, -0.0}, Elements{1, 0.0});
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.error, 0);
  EXPECT_EQ(result.index, 1);
  EXPECT_EQ(result.severity(), kInf);
}

TEST(CompareBits, FailsNeighbouringNumbersAndReportsTheWorst) {
  const double next = std::nextafter(1.0, 2.0);
  const Comparison result = compare_bits(Elements{next, 4, 8.5}, Elements{1, 4, 8});
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.error, 0.5);
  EXPECT_EQ(result.index, 2);
  EXPECT_EQ(result.actual, 8.5);
  EXPECT_EQ(result.expected, 8);
  EXPECT_EQ(result.allowed, 0);
}

TEST(CompareWithin, AllowsExactlyWhatIsAllowed) {
  EXPECT_TRUE(compare_within(Elements{1.25}, Elements{1}, 0.25).passed);
  EXPECT_FALSE(compare_within(Elements{1.25}, Elements{1}, 0.2499).passed);
  EXPECT_TRUE(compare_within(Elements{-0.0}, Elements{0.0}, 0).passed);
}

TEST(CompareWithin, NeverAllowsNanAgainstANumber) {
  for (const auto& [actual, expected] : {std::pair(kNan, 1.0), std::pair(1.0, kNan)}) {
    const Comparison result = compare_within(Elements{0, actual}, Elements{0, expected}, 1e300);
    EXPECT_FALSE(result.passed);
    EXPECT_EQ(result.error, kInf);
    EXPECT_EQ(result.index, 1);
  }
  EXPECT_TRUE(compare_within(Elements{kNan}, Elements{kNan}, 0).passed);
}

TEST(CompareWithin, WantsTheSameInfinity) {
  EXPECT_TRUE(compare_within(Elements{kInf, -kInf}, Elements{kInf, -kInf}, 0).passed);
  EXPECT_FALSE(compare_within(Elements{kInf}, Elements{-kInf}, 1e300).passed);
  EXPECT_FALSE(compare_within(Elements{kInf}, Elements{1e308}, 1e300).passed);
  EXPECT_FALSE(compare_within(Elements{kInf}, Elements{kNan}, 1e300).passed);
}

TEST(CompareWithin, PassesEmptyTensors) {
  EXPECT_TRUE(compare_within(Elements{}, Elements{}, 0).passed);
  EXPECT_TRUE(compare_bits(Elements{}, Elements{}).passed);
}

TEST(Comparison, OfDifferentSizesIsAnError) {
  EXPECT_THROW(compare_bits(Elements{1}, Elements{1, 2}), std::invalid_argument);
}

TEST(Magnitude, IsTheLargestFiniteElementButAtLeastOne) {
  EXPECT_EQ(magnitude(Elements{}), 1);
  EXPECT_EQ(magnitude(Elements{0.25, -0.5}), 1);
  EXPECT_EQ(magnitude(Elements{3, -7, kInf, kNan}), 7);
}

TEST(LargestFiniteError, LeavesOutWhatIsNoNumber) {
  EXPECT_EQ(largest_finite_error(Elements{1, kInf, kNan, 3}, Elements{1.5, 2, 3, 3}), 0.5);
}

TEST(Tolerance, GrowsAsTheTypeShrinks) {
  using enum io::ElementType;
  for (const Quantity quantity : {Quantity::kOutput, Quantity::kGradient}) {
    EXPECT_LT(tolerance(kFloat64, quantity), tolerance(kFloat32, quantity));
    EXPECT_LT(tolerance(kFloat32, quantity), tolerance(kFloat16, quantity));
    EXPECT_LT(tolerance(kFloat16, quantity), tolerance(kBFloat16, quantity));
  }
  EXPECT_THROW(tolerance(kInt32, Quantity::kOutput), std::invalid_argument);
}

Environment here() { return {"2.13.0", "AVX2", "A CPU", 2}; }

Manifest made_here() {
  Manifest manifest;
  manifest.environment = here();
  manifest.environment.torch_version = "2.13.0+cpu";
  return manifest;
}

Target eager_on_cpu(const Manifest& manifest) {
  return make_target(manifest, here(), Backend::kEager, Device::kCpu);
}

CaseRecord record(Owes owes, io::ElementType dtype = io::ElementType::kFloat32) {
  CaseRecord record{};
  record.owes = owes;
  record.dtype = dtype;
  return record;
}

TEST(Compare, WithNanOfCoversOnlyWhatIsExpectedToBeNan) {
  const std::vector<double> actual = {1, 2, std::nan("")};
  const std::vector<double> expected = {std::nan(""), 2, 3};
  const std::vector<double> covered = with_nan_of(actual, expected);
  EXPECT_TRUE(std::isnan(covered[0]));
  EXPECT_EQ(covered[1], 2);
  EXPECT_FALSE(compare_within(covered, expected, 1).passed);
}

TEST(Rule, DemandsBitsWhereTheManifestWasMade) {
  const Target target = eager_on_cpu(made_here());
  EXPECT_EQ(rule_for(record(Owes::kEqual), target), Rule::kBitEqual);
  EXPECT_EQ(rule_for(record(Owes::kDeparts), target), Rule::kFloat64);
  EXPECT_EQ(rule_for(record(Owes::kRefuse), target), Rule::kRefusal);
}

TEST(Rule, IsTheTableElsewhereAndSaysWhy) {
  Manifest torch = made_here(), capability = made_here(), model = made_here(),
           threads = made_here(), snapshot = made_here();
  torch.environment.torch_version = "2.12.0";
  capability.environment.cpu_capability = "AVX512";
  model.environment.cpu_model = "Another CPU";
  threads.environment.threads = 8;
  snapshot.snapshot = true;
  for (const auto& [manifest, reason] :
       {std::pair(torch, "2.12.0"), std::pair(capability, "AVX512"),
        std::pair(model, "Another CPU"), std::pair(threads, "8 threads"),
        std::pair(snapshot, "snapshot")}) {
    const Target target = eager_on_cpu(manifest);
    EXPECT_EQ(rule_for(record(Owes::kEqual), target), Rule::kTable);
    EXPECT_NE(explain(target).find(reason), std::string::npos) << explain(target);
  }
}

TEST(Rule, NeverDemandsBitsOfAnotherDeviceOrBackend) {
  const Target cuda = make_target(made_here(), here(), Backend::kEager, Device::kCuda);
  EXPECT_EQ(rule_for(record(Owes::kEqual), cuda), Rule::kTable);
  const Target automatic = make_target(made_here(), here(), Backend::kAuto, Device::kCpu);
  EXPECT_EQ(rule_for(record(Owes::kEqual), automatic), Rule::kFloat64);
  EXPECT_EQ(rule_for(record(Owes::kEqual, io::ElementType::kFloat64), automatic), Rule::kTable);
}

}  // namespace
}  // namespace self_attention::parity
