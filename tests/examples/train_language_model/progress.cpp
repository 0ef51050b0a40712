#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>

namespace language_model {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string duration_text(double seconds) {
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

Progress::Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every)
    : first_step_(first_step),
      steps_(steps),
      log_every_(log_every),
      terminal_(::isatty(STDOUT_FILENO) == 1),
      begin_(now()) {}

void Progress::show(const StepReport& report) {
  constexpr double kOldShare = 0.9;  // steps vary, the eye wants calm
  speed_ = speed_ == 0 ? report.tokens_per_second
                       : kOldShare * speed_ + (1 - kOldShare) * report.tokens_per_second;
  const std::int64_t left = steps_ - report.step;
  const double step_seconds = (now() - begin_) / static_cast<double>(report.step - first_step_);
  const std::string loss =
      report.validation_loss
          ? fmt::format("loss {:.4f}, validation {:.4f}", report.loss, *report.validation_loss)
          : fmt::format("loss {:.4f}", report.loss);
  const std::string rest = fmt::format("{:.0f} tokens/s, {} left", speed_,
                                       duration_text(step_seconds * static_cast<double>(left)));
  if (terminal_) {
    constexpr std::int64_t kWidth = 24;
    const std::int64_t filled = kWidth * report.step / steps_;
    fmt::print("\r\x1b[K[{:#<{}}{:.<{}}] {}/{} {}, {}", "", filled, "", kWidth - filled,
               report.step, steps_, loss, rest);
    open_line_ = true;
    if (report.validation_loss) end_line();  // stays on the screen
  } else if (report.validation_loss || left == 0 || report.step % log_every_ == 0) {
    fmt::print("step {}/{}: {}, {}\n", report.step, steps_, loss, rest);
  }
  std::fflush(stdout);
}

void Progress::end_line() {
  if (open_line_) fmt::print("\n");
  open_line_ = false;
  std::fflush(stdout);
}

}  // namespace language_model
