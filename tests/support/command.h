#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace self_attention::command_test {

/// What a command left behind.
struct Outcome {
  int code;
  std::string out;
  std::string err;
};

/// Runs `self-attention ARGUMENTS`, shell words, with standard error in a file of `folder`.
inline Outcome run(const std::filesystem::path& folder, const std::string& arguments) {
  const std::string errors = (folder / "stderr").string();
  const std::string command = SELF_ATTENTION_BINARY " " + arguments + " 2>" + errors;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  std::string out;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
  const int status = ::pclose(pipe);
  std::ifstream stream(errors, std::ios::binary);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out,
          std::string(std::istreambuf_iterator<char>(stream), {})};
}

inline testing::AssertionResult holds(const std::string& text, const std::string& words) {
  if (text.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected \"" << words << "\" in:\n" << text;
}

}  // namespace self_attention::command_test
