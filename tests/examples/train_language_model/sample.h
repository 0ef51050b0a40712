#pragma once

#include <string>

#include "model.h"
#include "options.h"
#include "text.h"

namespace language_model {

/// Text that the model writes after the prompt, with the prompt. The same seed and weights write
/// the same.
std::string sample_text(LanguageModel& model, const Text& text, const Options& options,
                        torch::Device device);

}  // namespace language_model
