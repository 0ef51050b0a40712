#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "step_report.h"

namespace language_model {

/// A CSV with a row for each step. Numbers are written so that reading gives the same bits.
class LossLog {
 public:
  /// Keeps the rows of an older file up to step `kept_steps`, replacing it whole; 0 begins anew.
  /// Throws std::runtime_error where the file cannot be written, as every method does.
  LossLog(const std::string& path, std::int64_t kept_steps);
  ~LossLog();
  LossLog(const LossLog&) = delete;
  LossLog& operator=(const LossLog&) = delete;

  void write(const StepReport& report);
  /// To be called before a checkpoint, which must not be ahead of the log after a power cut.
  void sync();

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace language_model
