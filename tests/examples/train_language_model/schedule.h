#pragma once

#include <cstdint>

#include "options.h"

namespace language_model {

/// The learning rate of a step, from 0: a linear warm-up, then half a cosine down to a tenth.
double learning_rate(const Options& options, std::int64_t step);

}  // namespace language_model
