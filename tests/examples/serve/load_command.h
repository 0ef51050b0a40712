#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "clients.h"

namespace serve {

struct LoadCommand {
  std::string model;
  ServerOptions server;
  LoadOptions load;
  bool direct = false;
};

CLI::App* add_load_command(CLI::App& app, LoadCommand& command);

/// Prints what it measured. The exit code: 0, or 1 where a request failed.
int run_load(const LoadCommand& command);

}  // namespace serve
