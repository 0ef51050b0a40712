#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "step_report.h"

namespace language_model {

/// A CSV with a row for each step. Numbers are written so that reading gives the same bits.
class LossLog {
 public:
  /// Keeps the rows of an older file up to step `kept_steps`, replacing it whole; 0 begins anew.
  /// Throws std::runtime_error where the file cannot be written, as every method does; it then
  /// ends with the last row that is whole.
  LossLog(const std::string& path, std::int64_t kept_steps);
  ~LossLog();
  LossLog(const LossLog&) = delete;
  LossLog& operator=(const LossLog&) = delete;

  void write(const StepReport& report);
  /// To be called before a checkpoint, which must not be ahead of the log after a power cut.
  void sync();

 private:
  void begin(const std::string& temporary, std::int64_t kept_steps);
  void append(std::string_view rows);
  [[noreturn]] void fail() const;

  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace language_model
