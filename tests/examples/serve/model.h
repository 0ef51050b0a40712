#pragma once

#include <torch/script.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace serve {

/// What the user can put right: said in one line, without a place in the source.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An archive of `self-attention export`, with what it says of itself.
struct Archive {
  torch::jit::Module module;
  std::string variant;
  std::int64_t embed = 0;
  std::int64_t heads = 0;
  torch::ScalarType dtype = torch::kFloat32;
  bool takes_mask = false;    ///< the last argument of forward
  bool takes_single = false;  ///< forward(x), where others take values, keys and query
  bool is_causal = false;
  bool is_frozen = false;
};

/// Runs code that is in the file. Throws Error where it cannot be opened or is none of ours.
Archive load_archive(const std::string& path);

/// The line of an error that says what was wrong: TorchScript puts a traceback in front of it.
std::string short_message(const std::exception& error);

}  // namespace serve
