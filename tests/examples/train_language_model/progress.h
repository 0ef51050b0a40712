#pragma once

#include <cstdint>

#include "step_report.h"

namespace language_model {

/// Shows how training goes: on a terminal a bar with loss, speed and time left, elsewhere a line
/// for every so many steps and for each validation.
class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every);

  void show(const StepReport& report);
  /// Leaves the bar's line. To be called before anything else is printed.
  void end_line();

 private:
  std::int64_t first_step_;
  std::int64_t steps_;
  std::int64_t log_every_;
  bool terminal_;
  double speed_ = 0;
  double begin_;
  bool open_line_ = false;
};

}  // namespace language_model
