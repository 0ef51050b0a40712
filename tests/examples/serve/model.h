#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace serve {

/// What the user can put right: said in one line, without a place in the source.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The arguments of forward, in its order.
using Arguments = std::vector<torch::Tensor>;
/// Any thread may call it.
using Forward = std::function<torch::Tensor(const Arguments&)>;
/// Parameters by name.
using Weights = std::map<std::string, torch::Tensor>;

/// What a model says of itself.
struct ModelInfo {
  std::string variant;
  std::int64_t embed = 0;
  std::int64_t heads = 0;
  torch::ScalarType dtype = torch::kFloat32;
  bool takes_mask = false;    ///< the last argument of forward
  bool takes_single = false;  ///< forward(x), where others take values, keys and query
  bool is_causal = false;
};

struct Model {
  ModelInfo info;
  Forward forward;
  /// Replaces all of them. Empty for a frozen archive, which has none.
  std::function<void(const Weights&)> set_weights;
};

/// An archive of `self-attention export`, or a package of scripts/compile_module.py, told by its
/// ending .pt2. So many threads can be in forward at once. Loading runs code that is in the file.
/// Throws Error where the file cannot be opened or is none of these.
Model load_model(const std::string& path, int threads);

constexpr auto kModelHelp =
    "An archive of `self-attention export`, or a package of scripts/compile_module.py";

/// The line of an error that says what was wrong: TorchScript puts a traceback in front of it.
std::string short_message(const std::exception& error);

}  // namespace serve
