#pragma once

#include <self_attention/api.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

namespace self_attention {

/// What load_state_dict takes from a file, and what it does about differences.
struct SELF_ATTENTION_API LoadStateDictOptions {
  /// Old prefix -> new prefix.
  using PrefixMap = std::map<std::string, std::string>;
  /// Name of a stacked tensor -> names of its parts.
  using SplitMap = std::map<std::string, std::vector<std::string>>;

  /// Whether a difference between file and module is an error. Otherwise what fits is loaded and
  /// the report says what did not.
  TORCH_ARG(bool, strict) = true;
  /// Whether a tensor of another dtype is converted to the module's. Otherwise it is a difference.
  TORCH_ARG(bool, convert_dtype) = false;
  /// The entry of a checkpoint that holds the state dict: "model", or "a.b" for nested ones. Empty:
  /// the one called "state_dict", "model_state_dict" or "model", or else the top level.
  TORCH_ARG(std::string, key) = "";
  /// Only names that begin with this count, and lose it: "module.", or "encoder.attn." to lift one
  /// layer out of a larger model's file.
  TORCH_ARG(std::string, strip_prefix) = "";
  /// Then, the longest key that a name begins with is replaced by its value.
  TORCH_ARG(PrefixMap, map_prefixes) = {};
  /// Tensors that the file stacks along their first dimension: the name that the whole has after
  /// the prefixes, and in order those that its equal parts have in the module.
  TORCH_ARG(SplitMap, split) = {};
};

/// Options that load a torch.nn.MultiheadAttention, with bias and one embed_dim, into a
/// FullProjectionAttention: in_proj_weight and in_proj_bias (3E rows) become q_linear, k_linear and
/// v_linear, and out_proj becomes output_linear. `prefix` says where the layer stands in the file:
/// "encoder.layers.0.self_attn." in that of a torch.nn.Transformer.
SELF_ATTENTION_API LoadStateDictOptions multihead_attention_options(const std::string& prefix = "");

/// How a state dict differs from a module.
struct SELF_ATTENTION_API StateDictReport {
  /// A tensor that is in both and does not fit.
  struct Mismatch {
    std::string name;      ///< in the module: "fc_out.bias"
    std::string expected;  ///< "float32 (8,)"
    std::string got;       ///< "float64 (8,)", "an object of class ..."
  };
  std::vector<std::string> missing;     ///< the module has them, the file has not
  std::vector<std::string> unexpected;  ///< the file has them, the module has not
  std::vector<Mismatch> mismatched;     ///< shape or dtype differs, or the value is no tensor

  /// Whether nothing differs.
  bool matches() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  /// A line for each kind of difference, names from the file quoted; empty where there is none.
  std::string text() const;
};

/// Copies a state dict into the parameters and buffers of `module`, any torch::nn::Module.
///
/// `file` may be what Python writes with torch.save(model.state_dict()), a checkpoint that holds
/// the state dict beside other objects, safetensors, a TorchScript archive, or what C++ writes with
/// torch::save; its bytes tell which. Tensors may have been on any device; they are copied to the
/// module's. Shapes must agree; dtypes too unless convert_dtype is set.
///
/// All or nothing: on any error the module is as it was. Throws c10::ValueError with the whole
/// report where strict is set and something differs, for a file that cannot be read, and for
/// parameters that cannot be written to (sparse, meta, expanded or inference tensors).
///
/// Safe on files from strangers: nothing in them is executed, an object that is not part of a state
/// dict is only named, and sizes are checked against the file before memory is taken. Tensors cost
/// at most the file's size beside the module, also where dtypes are converted; the list of what is
/// in the file costs at most 64 MiB more than the file's size, however it was crafted.
/// torch::jit::load and torch::load make no such promise.
SELF_ATTENTION_API StateDictReport load_state_dict(torch::nn::Module& module,
                                                   const std::string& file,
                                                   const LoadStateDictOptions& options = {});

/// Writes the parameters and buffers of `module`: dense tensors in float64, float32, bfloat16,
/// float16, int64, int32, int16, int8, uint8 or bool, on any device. Those that share memory are
/// each written whole.
///
/// The name decides the format: `.safetensors`, or `.pt` and `.pth` for a file that Python's
/// torch.load opens at its defaults (weights_only=True) into a dict that load_state_dict takes.
/// Appears whole or not at all: written beside `file`, synced and renamed, so that a crash or a
/// full disk leaves an older file as it was (a killed process leaves `.FILE.N.tmp` too, which the
/// next one to write the file removes). Threads and processes may save to one file: each save is
/// whole, the last one stays. Throws c10::ValueError for another ending, for other tensors, and
/// where the file cannot be written.
SELF_ATTENTION_API void save_state_dict(const torch::nn::Module& module, const std::string& file);

}  // namespace self_attention
