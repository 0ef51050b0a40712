// The `self-attention parity` command as a user meets it: exit codes, messages and files.

#include "support/command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "parity/reference_copy.h"
#include "tools/parity/environment.h"

namespace self_attention::parity {
namespace {

using command_test::holds;
using command_test::Outcome;
using command_test::run;

class ParityCommand : public testing::Test {
 protected:
  Outcome parity(const std::string& options = "") {
    return run(copy.folder(), "parity " + copy.directory() + " " + options);
  }

  ReferenceCopy copy;
};

TEST_F(ParityCommand, PassesTheSnapshot) {
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "") << "a progress bar belongs to a terminal";
  EXPECT_TRUE(holds(outcome.out, "table: the directory is a snapshot"));
  EXPECT_TRUE(holds(outcome.out, "worst case: shared_projection/"));
  EXPECT_TRUE(holds(outcome.out, std::to_string(copy.manifest["cases"].size()) + " cases passed"));
}

TEST_F(ParityCommand, ComparesTheAutoBackendWithFloat64) {
  const Outcome outcome = parity("--backend auto");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "float64: the auto backend"));
}

TEST_F(ParityCommand, FindsAnAlteredTensor) {
  const auto& entry = copy.first_case("equal");
  copy.overwrite(entry, "output", 1234.5F);
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(holds(outcome.err, copy.data_path()));
  EXPECT_TRUE(holds(outcome.err, entry["name"]));
  EXPECT_TRUE(holds(outcome.err, "export_reference.py"));
}

TEST_F(ParityCommand, FailsTheCaseWhoseNumberDiffers) {
  auto& entry = copy.first_case("equal");
  copy.overwrite(entry, "output", 1234.5F);
  copy.correct_checksum(entry, "output");
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  const std::string name = entry["name"];
  EXPECT_TRUE(holds(outcome.out, "FAILED " + name));
  EXPECT_TRUE(holds(outcome.out, "output[0, 0, 0]: got "));
  EXPECT_TRUE(holds(outcome.out, "expected 1234.5"));
  EXPECT_TRUE(holds(outcome.out, "worst case: " + name));
  EXPECT_TRUE(holds(outcome.out, "1 FAILED"));
}

TEST_F(ParityCommand, FailsTheCaseWhoseGradientDiffers) {
  auto& entry = copy.first_case("equal", "float64");
  copy.overwrite(entry, "gradient.fc_out.bias", 1234.5);
  copy.correct_checksum(entry, "gradient.fc_out.bias");
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "gradient.fc_out.bias[0]: got "));
}

TEST_F(ParityCommand, FailsAGradientThatTheClassDoesNotGive) {
  auto& entry = copy.first_case("equal", "float64");
  entry["tensors"].erase("gradient.fc_out.bias");
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "gradient.fc_out.bias: the Python class gives none"));
}

TEST_F(ParityCommand, FailsNanAgainstANumber) {
  auto& entry = copy.first_case("equal");
  copy.overwrite(entry, "output", std::numeric_limits<float>::quiet_NaN());
  copy.correct_checksum(entry, "output");
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "expected nan, error inf"));
}

TEST_F(ParityCommand, DemandsBitsWhereTheManifestWasMade) {
  copy.manifest["snapshot"] = false;
  const Environment here = current_environment();
  copy.manifest["torch_version"] = here.torch_version + "+local";
  copy.manifest["cpu_capability"] = here.cpu_capability;
  copy.manifest["cpu_model"] = here.cpu_model;
  auto& entry = copy.first_case("equal");
  copy.overwrite(entry, "output", 1234.5F);
  copy.correct_checksum(entry, "output");
  copy.save();
  const Outcome outcome = parity("--filter " + entry["name"].get<std::string>());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "bit-equal: torch version, CPU capability"));
  EXPECT_TRUE(holds(outcome.out, "allowed the same bits (bit-equal)"));
}

TEST_F(ParityCommand, FailsARefusalThatDoesNotHappen) {
  auto& entry = copy.first_case("equal");
  entry["owes"] = "refuse";
  entry["words"] = {"mask"};
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "the library returned a result"));
}

TEST_F(ParityCommand, FailsARefusalInOtherWords) {
  copy.first_case("refuse")["words"] = {"words that no message holds"};
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "expected \"words that no message holds\" in the error, got"));
}

TEST_F(ParityCommand, FailsWhereTheClassRaisedAndTheLibraryDoesNot) {
  auto& entry = copy.first_case("equal");
  entry["source_error"] = "RuntimeError: no";
  entry["tensors"].erase("output");
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "the class raised \"RuntimeError: no\", the library did not"));
}

TEST_F(ParityCommand, FailsWhereBothRaise) {
  auto& entry = copy.first_case("equal");
  entry["source_error"] = "RuntimeError: no";
  entry["heads"] = 0;
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "the class raised \"RuntimeError: no\" and the library raised"));
}

TEST_F(ParityCommand, FailsWhereTheLibraryRaises) {
  auto& entry = copy.first_case("equal");
  entry["heads"] = 0;
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(holds(outcome.out, "the library raised \"[SharedProjectionAttention]"));
}

TEST_F(ParityCommand, RefusesATruncatedFile) {
  std::filesystem::resize_file(copy.data_path(), std::filesystem::file_size(copy.data_path()) - 1);
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(holds(outcome.err, copy.data_path()));
  EXPECT_TRUE(holds(outcome.err, "truncated"));
}

TEST_F(ParityCommand, RefusesAMissingFile) {
  std::filesystem::remove(copy.data_path());
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(holds(outcome.err, copy.data_path()));
}

TEST_F(ParityCommand, RefusesAnEmptyOrMissingDirectory) {
  std::filesystem::remove_all(copy.directory());
  Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(holds(outcome.err, copy.directory() + ": expected a directory"));
  std::filesystem::create_directory(copy.directory());
  outcome = parity();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(holds(outcome.err, copy.manifest_path() + ": no such file"));
}

TEST_F(ParityCommand, RefusesAnUnknownVersion) {
  copy.manifest["format_version"] = 99;
  copy.save();
  const Outcome outcome = parity();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(holds(outcome.err, "format_version"));
}

TEST_F(ParityCommand, RefusesAFilterThatMatchesNothing) {
  const Outcome outcome = parity("--filter no-such-case");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(holds(outcome.err, "--filter no-such-case"));
}

TEST_F(ParityCommand, SkipsWhatTheFusedBackendCannotRun) {
  const Outcome outcome = parity("--backend fused");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "float64: the fused backend"));
  EXPECT_TRUE(holds(outcome.out, "skipped: it takes float32, bfloat16 and float16"));
  EXPECT_EQ(parity("--backend fused --filter /float64/").code, 1) << "no case run is no pass";
}

TEST_F(ParityCommand, SkipsADeviceThatIsNotThereOnlyWhenAllAreAsked) {
  if (has_cuda_device()) GTEST_SKIP() << "this machine has a CUDA device";
  const Outcome cuda = parity("--device cuda");
  EXPECT_EQ(cuda.code, 2);
  EXPECT_TRUE(holds(cuda.err, "no CUDA device"));
  const Outcome all = parity("--device all");
  EXPECT_EQ(all.code, 0) << all.out << all.err;
  EXPECT_TRUE(holds(all.out, "skipped: LibTorch finds no CUDA device"));
}

TEST_F(ParityCommand, WritesItsResultsAsJson) {
  const std::string path = (copy.folder() / "results.json").string();
  ReferenceCopy::write(path, "an older file");
  auto& entry = copy.first_case("equal");
  copy.overwrite(entry, "output", std::numeric_limits<float>::quiet_NaN());
  copy.correct_checksum(entry, "output");
  copy.save();
  EXPECT_EQ(parity("--json " + path).code, 1);
  const auto report = nlohmann::json::parse(ReferenceCopy::read(path));
  EXPECT_EQ(report["format"], "self-attention-parity-report");
  EXPECT_EQ(report["format_version"], 1);
  EXPECT_EQ(report["totals"]["failed"], 1);
  ASSERT_EQ(report["cases"].size(), copy.manifest["cases"].size());
  for (const auto& result : report["cases"]) {
    const bool spoiled = result["name"] == entry["name"];
    EXPECT_EQ(result["verdict"], spoiled ? "failed" : "passed");
    EXPECT_EQ(result["message"] == "", !spoiled);
    if (!spoiled) continue;
    EXPECT_EQ(result["rule"], "table");
    EXPECT_EQ(result["output"]["error"], "inf");
    EXPECT_EQ(result["output"]["expected"], "nan");
    EXPECT_EQ(result["gradient"]["passed"], true);
  }
}

TEST_F(ParityCommand, RefusesAJsonFileThatCannotBeWrittenBeforeItRuns) {
  for (const std::string& path :
       {copy.directory(), copy.directory() + "/none/results.json", std::string("/dev/null")}) {
    const Outcome outcome = parity("--json " + path);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(holds(outcome.err, path));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(ParityCommand, SaysWhereItsOutputIsLost) {
  for (const std::string& arguments :
       {"parity " + copy.directory() + " --filter per_head", "inspect " + copy.data_path()}) {
    const Outcome outcome = run(copy.folder(), arguments + " >/dev/full");
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_TRUE(holds(outcome.err, "No space left on device")) << arguments;
  }
}

TEST_F(ParityCommand, LeavesNoTemporaryFileBehind) {
  EXPECT_EQ(parity("--filter no-such-case --json " + (copy.folder() / "r.json").string()).code, 2);
  for (const auto& entry : std::filesystem::directory_iterator(copy.folder())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("r.json")) << entry.path();
  }
}

TEST_F(ParityCommand, TakesUsageErrorsForUnusableInput) {
  EXPECT_EQ(run(copy.folder(), "").code, 2);
  EXPECT_EQ(run(copy.folder(), "parity").code, 2);
  EXPECT_EQ(run(copy.folder(), "no-such-command").code, 2);
  EXPECT_EQ(parity("--device tpu").code, 2);
  EXPECT_EQ(parity("--no-such-option").code, 2);
  EXPECT_EQ(run(copy.folder(), "--help").code, 0);
  const Outcome help = run(copy.folder(), "parity --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(holds(help.out, "--backend"));
}

}  // namespace
}  // namespace self_attention::parity
