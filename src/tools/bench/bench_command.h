#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace self_attention::bench {

/// The command line of `self-attention bench`.
struct BenchOptions {
  std::vector<int> threads = {1};
  std::string target;    ///< the op's instruction set, empty for the one in use
  std::string filter;    ///< measures the cases whose name holds this text
  std::string json;      ///< file for Google Benchmark's JSON, empty for none
  double seconds = 0.5;  ///< of each measurement
  int repetitions = 1;
  bool list = false;
  std::vector<std::string> others;  ///< --benchmark_… options, as given
};

/// Adds the subcommand. Parsing fills `options`, which must outlive `app`.
CLI::App* add_bench_command(CLI::App& app, BenchOptions& options);

/// Measures and prints, and returns 0; throws std::runtime_error, naming option and remedy, where
/// an option cannot be served.
int run_bench(const BenchOptions& options);

}  // namespace self_attention::bench
