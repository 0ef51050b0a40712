#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "model_server.h"

namespace serve {

struct AnswerCommand {
  std::string model;
  std::string requests;
  std::string answers;
  std::string weights;
  ServerOptions server;
};

CLI::App* add_answer_command(CLI::App& app, AnswerCommand& command);

/// Prints the messages of requests that failed. The exit code: 0, or 1 where there are any.
int run_answer(const AnswerCommand& command);

}  // namespace serve
