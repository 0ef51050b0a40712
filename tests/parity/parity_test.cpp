// The library against the committed snapshot of what the Python classes returned.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <deque>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "tools/parity/environment.h"
#include "tools/parity/reference_case.h"
#include "tools/parity/run_case.h"

namespace self_attention::parity {
namespace {

struct SnapshotCase {
  const Manifest* manifest;
  const CaseRecord* record;
  Backend backend;
};

void PrintTo(const SnapshotCase& snapshot_case, std::ostream* out) {
  *out << snapshot_case.record->name;
}

/// The manifests under the snapshot's directory, one for each variant.
const std::deque<Manifest>& snapshot() {
  static const std::deque<Manifest> manifests = [] {
    std::deque<Manifest> found;
    for (const auto& entry : std::filesystem::directory_iterator(SELF_ATTENTION_SNAPSHOT_DIR)) {
      if (entry.is_directory()) found.push_back(read_manifest(entry.path().string()));
    }
    return found;
  }();
  return manifests;
}

std::vector<SnapshotCase> all_cases() {
  std::vector<SnapshotCase> cases;
  for (const Manifest& manifest : snapshot()) {
    for (const CaseRecord& record : manifest.cases) {
      for (const Backend backend : {Backend::kEager, Backend::kAuto, Backend::kFused}) {
        cases.push_back({&manifest, &record, backend});
      }
    }
  }
  return cases;
}

std::string test_name(const testing::TestParamInfo<SnapshotCase>& info) {
  std::string name(backend_name(info.param.backend));
  name += "_";
  for (const char c : info.param.record->name) {
    if (c == '+') {
      name += "plus";
    } else {
      name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    }
  }
  return name;
}

TEST(Snapshot, HasCasesOfEveryVariant) {
  std::vector<std::size_t> counts(3, 0);
  for (const Manifest& manifest : snapshot()) {
    for (const CaseRecord& record : manifest.cases) {
      ++counts.at(static_cast<std::size_t>(record.variant));
    }
  }
  EXPECT_GT(*std::ranges::min_element(counts), 0U) << "under " << SELF_ATTENTION_SNAPSHOT_DIR;
}

class SnapshotParity : public testing::TestWithParam<SnapshotCase> {};

TEST_P(SnapshotParity, Holds) {
  const auto& [manifest, record, backend] = GetParam();
  use_threads(manifest->environment.threads);
  const Target target = make_target(*manifest, current_environment(), backend, Device::kCpu);
  const CaseResult result = run_case(ReferenceReader(*manifest).load(*record), target);
  if (result.verdict == Verdict::kSkipped) GTEST_SKIP() << result.message;
  EXPECT_EQ(result.verdict, Verdict::kPassed) << result.message;
}

INSTANTIATE_TEST_SUITE_P(, SnapshotParity, testing::ValuesIn(all_cases()), test_name);

}  // namespace
}  // namespace self_attention::parity
