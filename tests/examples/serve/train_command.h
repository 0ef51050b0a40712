#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace serve {

struct TrainCommand {
  std::string model;
  std::string weights;
  int steps = 10;
};

CLI::App* add_train_command(CLI::App& app, TrainCommand& command);

/// Prints the loss before the first step and the last. The exit code.
int run_train(const TrainCommand& command);

}  // namespace serve
