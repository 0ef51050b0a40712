#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "memory.h"
#include "options.h"
#include "training.h"

int main(int argc, char** argv) {
  language_model::Options options;
  if (const auto status = language_model::parse_options(argc, argv, options)) return *status;
  language_model::keep_freed_memory();
  try {
    return language_model::train(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_language_model: {}\n", error.what());
    return 1;
  }
}
