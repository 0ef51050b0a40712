#include "io/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/bytes.h"
#include "support/temporary_folder.h"

namespace self_attention::io_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class OutputFileTest : public ::testing::Test {
 protected:
  static void put(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }
  static std::string get(const fs::path& path) {
    std::ostringstream content;
    content << std::ifstream(path, std::ios::binary).rdbuf();
    return content.str();
  }
  static void save(const fs::path& path, const std::string& content) {
    io::OutputFile file(path);
    file.write(content);
    file.commit();
  }
  static unsigned mode(const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 07777U : 0;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
  const fs::path target_ = folder_ / "model.pt";
};

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

TEST_F(OutputFileTest, KeepsTheOldFileWhenTheDiskIsFull) {
  put(target_, "old");
  // A limit on the size of files fails in the same call as a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] { save(target_, std::string(100'000, 'n')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, AllOf(HasSubstr("model.pt: writing failed, the file is as before"),
                             HasSubstr("File too large")));
  EXPECT_EQ(get(target_), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, SurvivesBeingKilled) {
  // Two contents of one size, told apart by every byte, saved in turn until the process dies.
  constexpr std::size_t kSize = 1 << 16;
  const std::array<std::string, 2> contents = {std::string(kSize, 'a'), std::string(kSize, 'b')};
  save(target_, contents[0]);
  for (int round = 0; round < 100; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (std::size_t i = 0;; ++i) save(target_, contents[i % 2]);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 37 * round));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const std::string found = get(target_);
    ASSERT_TRUE(found == contents[0] || found == contents[1]) << "round " << round;
  }
}

}  // namespace
}  // namespace self_attention::io_test
