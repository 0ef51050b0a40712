#include "loss_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

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
    kept.append(line).append("\n");
    last = step;
  }
  return kept;
}

}  // namespace

LossLog::LossLog(const std::string& path, std::int64_t kept_steps) : path_(path) {
  const std::string temporary = path + ".tmp";
  try {
    begin(temporary, kept_steps);
  } catch (...) {
    ::unlink(temporary.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

LossLog::~LossLog() { ::close(descriptor_); }

void LossLog::begin(const std::string& temporary, std::int64_t kept_steps) {
  descriptor_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail();
  append(kept_rows(path_, kept_steps));
  sync();
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) fail();
}

void LossLog::write(const StepReport& report) {
  const std::string validation =
      report.validation_loss ? fmt::format("{}", *report.validation_loss) : "";
  append(fmt::format("{},{},{},{},{:.1f},{:.3f}\n", report.step, report.loss, validation,
                     report.learning_rate, report.tokens_per_second, report.seconds));
}

void LossLog::append(std::string_view rows) {
  const auto size = static_cast<std::int64_t>(rows.size());
  while (!rows.empty()) {
    const ssize_t count = ::write(descriptor_, rows.data(), rows.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // A part of a row would be read as a row. Making a file smaller needs no space.
      if (::ftruncate(descriptor_, size_) == 0) errno = reason;
      fail();
    }
    rows.remove_prefix(static_cast<std::size_t>(count));
  }
  size_ += size;
}

void LossLog::sync() {
  if (::fsync(descriptor_) != 0) fail();
}

void LossLog::fail() const {
  throw std::runtime_error(fmt::format("{}: writing failed: {}", path_, std::strerror(errno)));
}

}  // namespace language_model
