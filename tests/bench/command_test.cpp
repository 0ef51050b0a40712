// The `self-attention bench` command as a user meets it. No time is judged.

#include "support/command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"

namespace self_attention::bench {
namespace {

using command_test::holds;
using command_test::Outcome;
using command_test::run;

class BenchCommand : public testing::Test {
 protected:
  Outcome bench(const std::string& options) {
    return run(folder.path(), "bench --seconds 0.001 " + options);
  }

  std::string file(const std::string& name) const { return (folder.path() / name).string(); }

  io_test::TemporaryFolder folder;
};

TEST_F(BenchCommand, ListsItsCases) {
  const Outcome all = bench("--list");
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_GT(std::count(all.out.begin(), all.out.end(), '\n'), 20);
  const Outcome some = bench("--list --filter causal");
  EXPECT_EQ(some.out, "causal-L512\ncausal-L2048\ntrain-causal-L512\ntrain-causal-L2048\n");
}

TEST_F(BenchCommand, MeasuresBothImplementationsAndWritesJson) {
  const Outcome outcome =
      bench("--filter L9 --threads 1 2 --target scalar --json " + file("r.json"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "L9/torch/threads:2/real_time"));
  std::ifstream stream(file("r.json"));
  const auto report = nlohmann::json::parse(stream);
  EXPECT_NE(report["context"]["torch"], "");
  std::size_t ours = 0;
  for (const auto& entry : report["benchmarks"]) {
    const std::string name = entry["name"];
    EXPECT_GT(entry["real_time"], 0) << name;
    EXPECT_GT(entry["FLOPS"], 0) << name;
    if (name.find("/attention/") == std::string::npos) continue;
    EXPECT_EQ(entry["label"], "cpu/scalar") << name;
    ++ours;
  }
  EXPECT_EQ(report["benchmarks"].size(), 2 * ours);
  EXPECT_GE(ours, 2);
}

TEST_F(BenchCommand, HandsGoogleBenchmarkItsOptions) {
  const Outcome outcome =
      bench("--filter L9 --benchmark_out=" + file("o.json") + " --benchmark_filter=L9/torch");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "L9/torch/threads:1"));
  EXPECT_EQ(outcome.out.find("/attention/"), std::string::npos) << outcome.out;
  EXPECT_TRUE(std::filesystem::exists(file("o.json")));
}

TEST_F(BenchCommand, RefusesWhatItCannotServe) {
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {"--filter no-such-case", "--filter no-such-case: no case"},
      {"--target z80", "--target z80: this machine and build have"},
      {"--no-such-option", "--no-such-option: no such option"},
      {"--threads 0", "--threads"}};
  for (const auto& [options, words] : refusals) {
    const Outcome outcome = bench(options);
    EXPECT_EQ(outcome.code, 2) << options;
    EXPECT_EQ(outcome.out, "") << options;
    EXPECT_TRUE(holds(outcome.err, words));
  }
}

TEST_F(BenchCommand, RefusesAJsonFileThatCannotBeWrittenBeforeItMeasures) {
  const Outcome outcome = bench("--filter L9 --json " + file("none/r.json"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(holds(outcome.err, file("none/r.json")));
}

}  // namespace
}  // namespace self_attention::bench
