#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace self_attention::exporting {

/// The command line of `self-attention export`.
struct ExportRequest {
  std::string variant;
  std::string weights;
  std::string key;         ///< the entry of a checkpoint that holds the state dict
  std::string prefix;      ///< what the parameters' names begin with; empty: told by the file
  std::int64_t embed = 0;  ///< 0: told by the weights
  std::int64_t heads = 0;  ///< 0: told by the weights
  std::string mask = "required";
  std::string inputs = "separate";
  std::string ops = "portable";
  bool freeze = false;
  std::string out;     ///< the archive, empty for none
  std::string triton;  ///< the model repository, empty for none
  std::string triton_name;
  std::int64_t max_batch_size = 8;
};

/// Adds the subcommand. Parsing fills `request`, which must outlive `app`.
CLI::App* add_export_command(CLI::App& app, ExportRequest& request);

/// Writes what is asked for. Returns a line for each file written; throws std::runtime_error,
/// naming option or file, where the input cannot be used or a file not be written.
std::string run_export(const ExportRequest& request);

}  // namespace self_attention::exporting
