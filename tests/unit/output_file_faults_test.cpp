// Saves that a full or read-only disk, a signal or another process comes in between.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "unit/output_folder.h"

namespace self_attention::io_test {
namespace {

using OutputFileFaults = OutputFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Runs `action` in a process of its own that may mount what it likes, and returns the text that
/// `action` returns; empty where this machine does not let it.
std::string with_own_mounts(const std::function<std::string()>& action) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    const bool free =
        (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    const std::string text = free ? action() : "";
    const bool sent = ::write(ends[1], text.data(), text.size()) >= 0;
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 256> buffer{};
  for (ssize_t n = 0; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

constexpr const char* kCannotMount = "this process may not mount a file system";

TEST_F(OutputFileFaults, AFullDiskLeavesTheOldFile) {
  const std::string message = with_own_mounts([&]() -> std::string {
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) return {};
    save(target_, "old");
    const std::string error = error_of([&] { save(target_, std::string(100'000, 'n')); });
    return get(target_) + ", files: " + std::to_string(files()) + ", " + error;
  });
  if (message.empty()) GTEST_SKIP() << kCannotMount;
  EXPECT_THAT(message,
              AllOf(StartsWith("old, files: 1, "),
                    HasSubstr("model.pt: writing failed, the file is as before: No space")));
}

TEST_F(OutputFileFaults, AReadOnlyDiskIsRefused) {
  const std::string message = with_own_mounts([&]() -> std::string {
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) return {};
    save(target_, "old");
    if (::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return {};
    return get(target_) + ", " + error_of([&] { save(target_, "new"); }) + ", " +
           error_of([&] { save(folder_ / "other.pt", "new"); });
  });
  if (message.empty()) GTEST_SKIP() << kCannotMount;
  EXPECT_THAT(message, AllOf(StartsWith("old, "),
                             HasSubstr("the file cannot be replaced: Read-only file system, "),
                             HasSubstr("created in its folder: Read-only file system")));
}

TEST_F(OutputFileFaults, ALimitOnTheSizeOfFilesLeavesTheOldFile) {
  put(target_, "old");
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

TEST_F(OutputFileFaults, AFolderThatVanishesIsReported) {
  const fs::path folder = folder_ / "gone";
  fs::create_directory(folder);
  io::OutputFile file(folder / "model.pt");
  file.write("new");
  fs::remove_all(folder);
  EXPECT_THAT(error_of([&] { file.commit(); }),
              HasSubstr("replacing failed, the file is as before: No such file or directory"));
}

/// Contents of one size, told apart by every byte.
std::string content(std::size_t which) {
  return std::string(1 << 16, static_cast<char>('a' + which));
}

bool is_content(const std::string& found) {
  return found.size() == content(0).size() && found == std::string(found.size(), found[0]);
}

TEST_F(OutputFileFaults, ASignalLeavesAWholeFileAndNothingPilesUp) {
  save(target_, content(0));
  constexpr std::array<int, 3> kSignals = {SIGKILL, SIGTERM, SIGINT};
  for (int round = 0; round < 99; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::size_t i = 0;; ++i) save(target_, content(i % 2));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 37 * round));
    ASSERT_EQ(::kill(child, kSignals[static_cast<std::size_t>(round) % kSignals.size()]), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_TRUE(is_content(get(target_))) << "round " << round;
    // What this one left is all there may be.
    ASSERT_LE(files(), 2U) << "round " << round;
  }
  save(target_, content(2));
  EXPECT_EQ(get(target_), content(2));
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileFaults, RemovesWhatSeveralDeadWritersLeftAndNotWhatALiveOneWrites) {
  for (const char* name : {".model.pt.0.tmp", ".model.pt.2.tmp"}) put(folder_ / name, "left");
  io::OutputFile first(target_);
  io::OutputFile second(target_);
  EXPECT_EQ(files(), 3U) << "one of each, and what lies behind a gap";
  io::OutputFile third(target_);
  EXPECT_EQ(files(), 3U) << "the third took the place";
  first.write("1");
  second.write("2");
  third.write("3");
  third.commit();
  EXPECT_EQ(get(target_), "3");
  first.commit();
  EXPECT_EQ(get(target_), "1");
  second.commit();
  EXPECT_EQ(get(target_), "2");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileFaults, TakesNoForeignFileForItsOwn) {
  put(folder_ / "precious", "kept");
  fs::create_symlink("precious", folder_ / ".model.pt.0.tmp");
  fs::create_directory(folder_ / ".model.pt.1.tmp");
  ASSERT_EQ(::mkfifo((folder_ / ".model.pt.2.tmp").c_str(), 0600), 0);
  save(target_, "new");
  EXPECT_EQ(get(target_), "new");
  EXPECT_EQ(get(folder_ / "precious"), "kept");
  EXPECT_EQ(files(), 5U);
}

TEST_F(OutputFileFaults, ProcessesAndThreadsMaySaveToOnePath) {
  constexpr std::size_t kProcesses = 3;
  constexpr std::size_t kThreads = 2;
  constexpr int kSaves = 15;
  save(target_, content(0));
  std::vector<pid_t> children;
  for (std::size_t process = 0; process < kProcesses; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    std::array<std::string, kThreads> errors;
    {
      std::vector<std::jthread> threads;
      for (std::size_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          errors[thread] = error_of([&] {
            for (int i = 0; i < kSaves; ++i) save(target_, content(process * kThreads + thread));
          });
        });
      }
    }
    for (const std::string& error : errors) {
      if (error != "nothing thrown") std::fprintf(stderr, "%s\n", error.c_str());
      if (error != "nothing thrown") ::_exit(1);
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) ASSERT_TRUE(is_content(get(target_)));
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(is_content(get(target_)));
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace self_attention::io_test
