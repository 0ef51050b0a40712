#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "io/output_file.h"
#include "support/bytes.h"
#include "support/temporary_folder.h"

namespace self_attention::io_test {

namespace fs = std::filesystem;

/// A folder to write a file in.
class OutputFolder : public ::testing::Test {
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
  std::size_t files() const { return entries(folder_); }

  TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
  const fs::path target_ = folder_ / "model.pt";
};

}  // namespace self_attention::io_test
