#pragma once

#include <cstdint>
#include <optional>

namespace language_model {

/// What a step tells the log and the progress line.
struct StepReport {
  std::int64_t step;  ///< from 1
  double loss;        ///< before the step's update, nats a character
  std::optional<double> validation_loss;
  double learning_rate;
  double tokens_per_second;  ///< of this step, over all processes
  double seconds;            ///< since the training began, in all its runs
};

}  // namespace language_model
