#include "loss_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace language_model {
namespace {

constexpr const char* kHeader =
    "step,loss,validation_loss,learning_rate,tokens_per_second,seconds\n";

/// The header and the rows that count: in order, up to that step, and not cut off by a kill.
std::string kept_rows(const std::string& path, std::int64_t kept_steps) {
  std::string kept = kHeader;
  std::ifstream file(path);
  std::string line;
  std::int64_t last = 0;
  while (kept_steps > 0 && std::getline(file, line)) {
    std::int64_t step = 0;
    std::from_chars(line.data(), line.data() + line.size(), step);
    const bool whole = !file.eof() && std::ranges::count(line, ',') == 5;
    if (!whole || step <= last || step > kept_steps) continue;
    kept += line + "\n";
    last = step;
  }
  return kept;
}

}  // namespace

LossLog::LossLog(const std::string& path, std::int64_t kept_steps) : path_(path) {
  const std::string kept = kept_rows(path, kept_steps);
  const std::string temporary = path + ".tmp";
  file_ = std::fopen(temporary.c_str(), "w");
  if (file_ == nullptr) fail();
  if (std::fwrite(kept.data(), 1, kept.size(), file_) != kept.size()) fail();
  sync();
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    errno = error.value();
    fail();
  }
}

LossLog::~LossLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void LossLog::write(const StepReport& report) {
  const std::string validation =
      report.validation_loss ? fmt::format("{}", *report.validation_loss) : "";
  fmt::print(file_, "{},{},{},{},{:.1f},{:.3f}\n", report.step, report.loss, validation,
             report.learning_rate, report.tokens_per_second, report.seconds);
  if (std::fflush(file_) != 0) fail();
}

void LossLog::sync() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail();
}

void LossLog::fail() const {
  throw std::runtime_error(fmt::format("{}: writing failed: {}", path_, std::strerror(errno)));
}

}  // namespace language_model
