#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace language_model {

/// What the command line says.
struct Options {
  std::string text = "/usr/share/common-licenses/GPL-3";
  std::string out = "language_model";
  bool resume = false;
  std::string init;

  std::int64_t context = 256;
  std::int64_t embed = 128;
  std::int64_t heads = 4;
  std::int64_t layers = 4;
  double dropout = 0.2;

  std::int64_t steps = 1300;
  std::int64_t batch = 16;
  double learning_rate = 3e-3;
  std::int64_t warmup = 100;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::int64_t seed = 1;

  std::string dtype = "float32";
  bool bf16 = false;
  std::string backend = "auto";
  std::string device = "cpu";
  int threads = 0;
  int timeout = 60;

  std::int64_t validate_every = 100;
  std::int64_t checkpoint_every = 100;
  std::int64_t log_every = 10;
  std::int64_t sample = 400;
  std::string prompt;
  double temperature = 0.8;

  std::string checkpoint_file() const { return out + "/checkpoint.pt"; }
  std::string csv_file() const { return out + "/loss.csv"; }
};

/// Reads the command line. Returns the exit status where the program is to end at once: after
/// --help, or with what is wrong on standard error.
std::optional<int> parse_options(int argc, char** argv, Options& options);

}  // namespace language_model
