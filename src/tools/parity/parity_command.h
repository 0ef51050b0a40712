#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace self_attention::parity {

/// The command line of `self-attention parity`.
struct ParityOptions {
  std::vector<std::string> directories;
  std::string device = "cpu";     ///< cpu, cuda or all
  std::string backend = "eager";  ///< eager, auto or fused
  std::string filter;             ///< runs the cases whose name holds this text
  std::string json;               ///< file for machine-readable results, empty for none
};

/// Adds the subcommand. Parsing fills `options`, which must outlive `app`.
CLI::App* add_parity_command(CLI::App& app, ParityOptions& options);

/// Runs the cases and prints the report. Returns 0 where all passed and 1 where something failed;
/// throws std::runtime_error, naming file, case and remedy, where the input cannot be used.
int run_parity(const ParityOptions& options);

}  // namespace self_attention::parity
