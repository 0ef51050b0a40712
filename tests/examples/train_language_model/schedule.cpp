#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace language_model {

double learning_rate(const Options& options, std::int64_t step) {
  constexpr double kLast = 0.1;
  if (step < options.warmup) {
    return options.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup);
  }
  const std::int64_t falling_steps = std::max<std::int64_t>(1, options.steps - options.warmup);
  const double done =
      static_cast<double>(step - options.warmup) / static_cast<double>(falling_steps);
  const double falling = 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return options.learning_rate * (kLast + (1.0 - kLast) * falling);
}

}  // namespace language_model
