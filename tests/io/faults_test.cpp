// State dicts and archives where memory is refused, files change meanwhile, or a signal comes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <self_attention/io/checkpoint.h>
#include <self_attention/io/torchscript.h>
#include <self_attention/self_attention.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/script.h>
#include <torch/utils.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/refusing_allocator.h"
#include "support/temporary_folder.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A module whose every number is `value`.
FullProjectionAttention filled(double value) {
  FullProjectionAttention module(32, 2);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) parameter.fill_(value);
  return module;
}

/// What every number of a module is; NaN where they differ.
double value_of(const FullProjectionAttention& module) {
  const double first = module->q_linear->weight[0][0].item<double>();
  for (const auto& parameter : module->parameters()) {
    if (!parameter.eq(first).all().item<bool>()) return std::nan("");
  }
  return first;
}

class IoFaults : public ::testing::TestWithParam<const char*> {
 protected:
  std::size_t files() const { return io_test::entries(folder_.path()); }
  void write(const FullProjectionAttention& module) const {
    if (fs::path(path_).filename() == "script.pt") return export_torchscript(*module, path_);
    save_state_dict(*module, path_);
  }
  double read() const {
    auto module = filled(-1);
    load_state_dict(*module, path_);
    return value_of(module);
  }

  io_test::TemporaryFolder folder_;
  const std::string path_ = (folder_.path() / GetParam()).string();
};

TEST_P(IoFaults, RefusedMemoryLeavesTheModuleAsItWas) {
  write(filled(1));
  auto module = filled(2);
  testing::refuse_each_tensor([&] { load_state_dict(*module, path_); },
                              [&](std::size_t n, bool happened, bool thrown) {
                                EXPECT_EQ(thrown, happened) << "tensor " << n;
                                EXPECT_EQ(value_of(module), happened ? 2 : 1) << "tensor " << n;
                              });
}

TEST_P(IoFaults, RefusedMemoryLeavesTheFileAsItWas) {
  write(filled(1));
  const FullProjectionAttention transposed = filled(2);
  // One that is copied to be written.
  transposed->q_linear->weight.set_data(transposed->q_linear->weight.t());
  testing::refuse_each_tensor([&] { write(transposed); },
                              [&](std::size_t n, bool happened, bool thrown) {
                                EXPECT_EQ(thrown, happened) << "tensor " << n;
                                EXPECT_EQ(read(), happened ? 1 : 2) << "tensor " << n;
                                EXPECT_EQ(files(), 1U) << "tensor " << n;
                              });
}

TEST_P(IoFaults, AFileThatShrinksOrVanishesMeanwhileIsAnError) {
  write(filled(1));
  const auto size = static_cast<double>(fs::file_size(path_));
  std::atomic<bool> done = false;
  std::jthread other([&] {
    for (int i = 0; !done; ++i) {
      std::error_code ignored;
      if (i % 8 == 7) fs::remove(path_, ignored);
      if (i % 2 == 1)
        fs::resize_file(path_, static_cast<std::size_t>(size * (i % 20) / 20), ignored);
      if (i % 2 == 0) write(filled(1));
    }
  });
  auto module = filled(2);
  int errors = 0;
  int loads = 0;
  for (int i = 0; i < 2000 && (errors < 20 || loads < 20); ++i) {
    try {
      load_state_dict(*module, path_);
      ++loads;
      ASSERT_EQ(value_of(module), 1);
      module = filled(2);
    } catch (const c10::ValueError& error) {
      ++errors;
      ASSERT_THAT(error.what(), HasSubstr("[load_state_dict] file: "));
      ASSERT_EQ(value_of(module), 2);
    }
  }
  done = true;
  EXPECT_GT(errors, 0);
  EXPECT_GT(loads, 0);
}

TEST_P(IoFaults, ASignalLeavesAWholeFile) {
  write(filled(0));
  for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGKILL}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // As of a forked process: the parent's threads are not there.
      torch::set_num_threads(1);
      for (int i = 0;; ++i) write(filled(i % 2));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    ASSERT_EQ(::kill(child, signal), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const double value = read();
    EXPECT_TRUE(value == 0 || value == 1) << value;
    EXPECT_LE(files(), 2U);
  }
  write(filled(3));
  EXPECT_EQ(read(), 3);
  EXPECT_EQ(files(), 1U);
}

TEST_P(IoFaults, ThreadsMaySaveToOnePath) {
  std::array<std::string, 4> errors;
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < errors.size(); ++thread) {
      threads.emplace_back([&, thread] {
        try {
          for (int i = 0; i < 10; ++i) write(filled(static_cast<double>(thread)));
        } catch (const std::exception& error) {
          errors[thread] = error.what();
        }
      });
    }
  }
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_FALSE(std::isnan(read()));
  EXPECT_EQ(files(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Names, IoFaults,
                         ::testing::Values("state.pt", "state.safetensors", "script.pt"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name == "state.pt"    ? "Torch"
                                  : name == "script.pt" ? "TorchScript"
                                                        : "Safetensors";
                         });

}  // namespace
}  // namespace self_attention
