#include "io/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "unit/output_folder.h"

namespace self_attention::io_test {
namespace {

using OutputFileTest = OutputFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(OutputFileTest, CreatesAFileUnderTheUmask) {
  const mode_t before = ::umask(027);
  save(target_, "new");
  ::umask(before);
  EXPECT_EQ(get(target_), "new");
  EXPECT_EQ(mode(target_), 0640U);
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, ReplacesAFileAndKeepsItsMode) {
  put(target_, "old");
  ASSERT_EQ(::chmod(target_.c_str(), 0604), 0);
  {
    io::OutputFile file(target_);
    file.write("new");
    EXPECT_EQ(file.position(), 3U);
    EXPECT_EQ(get(target_), "old");
    file.commit();
  }
  EXPECT_EQ(get(target_), "new");
  EXPECT_EQ(mode(target_), 0604U);
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, LeavesNoTraceWithoutCommit) {
  put(target_, "old");
  {
    io::OutputFile file(target_);
    file.write("half of the n");
    EXPECT_EQ(files(), 2U);
  }
  EXPECT_EQ(get(target_), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, ReplacesWhatALinkNames) {
  fs::create_directory(folder_ / "store");
  put(folder_ / "store" / "v1", "old");
  fs::create_symlink("store/v1", folder_ / "latest");
  fs::create_symlink(folder_ / "latest", target_);
  save(target_, "new");
  EXPECT_TRUE(fs::is_symlink(target_));
  EXPECT_EQ(get(folder_ / "store" / "v1"), "new");
  fs::create_symlink("store/v2", folder_ / "dangling");
  save(folder_ / "dangling", "newer");
  EXPECT_EQ(get(folder_ / "store" / "v2"), "newer");
}

TEST_F(OutputFileTest, TakesRelativeAndLongNames) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  save("here.pt", "content");
  fs::current_path(before);
  EXPECT_EQ(get(folder_ / "here.pt"), "content");
  const std::string longest(255, 'n');
  save(folder_ / longest, "content");
  EXPECT_EQ(get(folder_ / longest), "content");
}

TEST_F(OutputFileTest, RefusesWhatCannotBeWritten) {
  EXPECT_THAT(error_of([&] { io::OutputFile file(folder_); }),
              HasSubstr("expected a regular file or none, found a directory"));
  EXPECT_THAT(error_of([&] { io::OutputFile file("/dev/null"); }), HasSubstr("something else"));
  EXPECT_THAT(error_of([&] { io::OutputFile file(folder_ / "absent" / "x"); }),
              AllOf(HasSubstr("absent/x"), HasSubstr("No such file or directory")));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(error_of([&] { io::OutputFile file(folder_ / "loop"); }),
              HasSubstr("cannot be reached"));
}

TEST_F(OutputFileTest, RespectsPermissions) {
  constexpr uid_t kNobody = 65534;
  put(target_, "old");
  // Root may write everywhere, so it steps down.
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(folder_.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(::chown(target_.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  ASSERT_EQ(::chmod(target_.c_str(), 0444), 0);
  EXPECT_THAT(error_of([&] { io::OutputFile file(target_); }),
              HasSubstr("the file cannot be replaced: Permission denied"));
  ASSERT_EQ(::chmod(folder_.c_str(), 0555), 0);
  EXPECT_THAT(error_of([&] { io::OutputFile file(folder_ / "new"); }),
              HasSubstr("no file can be created in its folder: Permission denied"));
  ::chmod(folder_.c_str(), 0755);
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

}  // namespace
}  // namespace self_attention::io_test
