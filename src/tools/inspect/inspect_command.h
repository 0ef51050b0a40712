#pragma once

#include <string>

namespace CLI {
class App;
}

namespace self_attention::inspect {

/// The command line of `self-attention inspect`.
struct InspectOptions {
  std::string file;
  std::string key;  ///< the entry that holds the state dict, empty for the usual ones
};

/// Adds the subcommand. Parsing fills `options`, which must outlive `app`.
CLI::App* add_inspect_command(CLI::App& app, InspectOptions& options);

/// What the file holds, as text; reads its index and no tensor. Throws io::FormatError for a file
/// that cannot be read.
std::string describe_file(const InspectOptions& options);

}  // namespace self_attention::inspect
