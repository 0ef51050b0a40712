#pragma once

#include "options.h"

namespace language_model {

/// Trains as the options say, in this process and those that it was started with. Returns the exit
/// status: 0 when done, 130 after an interrupt, with a checkpoint. Throws std::exception where it
/// cannot.
int train(const Options& options);

}  // namespace language_model
