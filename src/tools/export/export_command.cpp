#include "tools/export/export_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <self_attention/io/checkpoint.h>
#include <self_attention/io/torchscript.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "io/checked.h"
#include "io/input_file.h"
#include "io/output_file.h"
#include "io/tensor_index.h"
#include "io/text.h"
#include "io/torch_types.h"
#include "io/torchscript_fused.h"
#include "tools/export/triton_config.h"
#include "tools/inspect/module_match.h"

namespace self_attention::exporting {
namespace {

namespace fs = std::filesystem;
using inspect::ModuleMatch;
using io::ScriptVariant;

ScriptVariant variant_from(const std::string& name) {
  if (name == "full_projection") return ScriptVariant::kFullProjection;
  return name == "inferred_length" ? ScriptVariant::kInferredLength
                                   : ScriptVariant::kSharedProjection;
}

ScriptMask mask_from(const std::string& name) {
  if (name == "none") return ScriptMask::kNone;
  return name == "optional" ? ScriptMask::kOptional : ScriptMask::kRequired;
}

ScriptInputs inputs_from(const std::string& name) {
  return name == "single" ? ScriptInputs::kSingle : ScriptInputs::kSeparate;
}

ScriptOps ops_from(const std::string& name) {
  return name == "fused" ? ScriptOps::kFused : ScriptOps::kPortable;
}

/// What the weights tell, with what the command line says instead.
struct Weights {
  std::string prefix;
  std::int64_t embed;
  std::int64_t heads;
  io::ElementType dtype;
};

/// Whether the parameters of that set fit the variant.
bool fits(const ModuleMatch& match, ScriptVariant variant) {
  return match.module == io::module_name(variant) ||
         (variant == ScriptVariant::kInferredLength &&
          match.module == io::module_name(ScriptVariant::kSharedProjection));
}

ModuleMatch find_module(const ExportRequest& request, const io::TensorIndex& index) {
  std::vector<ModuleMatch> found;
  for (const ModuleMatch& match : inspect::match_modules(index)) {
    const bool wanted = request.prefix.empty() || match.prefix == request.prefix;
    if (wanted && fits(match, variant_from(request.variant))) found.push_back(match);
  }
  const std::string where =
      request.prefix.empty() ? "" : " that begin with " + io::in_quotes(request.prefix);
  if (found.empty()) {
    throw std::runtime_error(fmt::format(
        "--weights {}: expected parameters of {}{}, found none; `self-attention inspect` lists "
        "what the file holds",
        request.weights, io::module_name(variant_from(request.variant)), where));
  }
  if (found.size() > 1) {
    std::vector<std::string> prefixes;
    for (const ModuleMatch& match : found) prefixes.push_back(io::in_quotes(match.prefix));
    throw std::runtime_error(fmt::format("--prefix: expected one of {} for {}, got none",
                                         fmt::join(prefixes, ", "), request.weights));
  }
  return found.front();
}

/// The dtype of the parameters. They are no larger than the file, which a view may claim to be.
io::ElementType find_dtype(const io::InputFile& file, const io::TensorIndex& index,
                           const std::string& prefix) {
  std::optional<io::ElementType> dtype;
  for (const io::TensorEntry& entry : index.tensors) {
    if (!entry.name.starts_with(prefix)) continue;
    const auto bytes = io::tensor_bytes(entry.shape, io::element_size(entry.type));
    if (!bytes || *bytes > file.size()) {
      throw std::runtime_error(fmt::format("{}: {}: expected a tensor within the file, got {}",
                                           file.path(), io::in_quotes(entry.name),
                                           io::shape_text(entry.shape)));
    }
    if (entry.name.ends_with(".bias")) dtype = entry.type;
  }
  if (!dtype || !torch::isFloatingType(io::scalar_type(*dtype))) {
    throw std::runtime_error(
        fmt::format("{}: expected parameters in float64, float32, bfloat16 or float16, got {}",
                    file.path(), dtype ? io::element_name(*dtype) : "none"));
  }
  return *dtype;
}

Weights read_weights(const ExportRequest& request) {
  const io::InputFile file(request.weights);
  const io::TensorIndex index = io::read_tensor_index(file, request.key);
  const ModuleMatch match = find_module(request, index);
  if (request.heads == 0 && !match.heads) {
    throw std::runtime_error(
        fmt::format("--heads: expected a number, got none: the weights of {} do not tell it; the "
                    "Python class runs with 1",
                    match.module));
  }
  return {match.prefix, request.embed == 0 ? match.embed : request.embed,
          request.heads == 0 ? match.heads.value_or(0) : request.heads,
          find_dtype(file, index, match.prefix)};
}

/// Writes the archive of the loaded module to a path.
using Writer = std::function<void(const std::string& path)>;

template <typename Holder>
Writer loaded(const ExportRequest& request, const Weights& weights, const ExportOptions& options) {
  Holder module(weights.embed, weights.heads);
  module->to(io::scalar_type(weights.dtype));
  load_state_dict(*module, request.weights,
                  LoadStateDictOptions().key(request.key).strip_prefix(weights.prefix));
  return [module, options](const std::string& path) { export_torchscript(*module, path, options); };
}

Writer load_module(const ExportRequest& request, const Weights& weights) {
  const auto options = ExportOptions()
                           .ops(ops_from(request.ops))
                           .mask(mask_from(request.mask))
                           .inputs(inputs_from(request.inputs))
                           .freeze(request.freeze);
  switch (variant_from(request.variant)) {
    case ScriptVariant::kFullProjection:
      return loaded<FullProjectionAttention>(request, weights, options);
    case ScriptVariant::kInferredLength:
      return loaded<InferredLengthAttention>(request, weights, options);
    case ScriptVariant::kSharedProjection:
      break;
  }
  return loaded<SharedProjectionAttention>(request, weights, options);
}

/// Folders that go again unless they are kept.
class NewFolders {
 public:
  explicit NewFolders(const fs::path& path) {
    std::vector<fs::path> missing;
    for (fs::path folder = path; !folder.empty() && !fs::exists(folder);
         folder = folder.parent_path()) {
      missing.push_back(folder);
    }
    for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
      std::error_code error;
      fs::create_directory(*folder, error);
      if (error) {
        remove();
        throw std::runtime_error(fmt::format("--triton: {}: the folder cannot be made: {}",
                                             folder->string(), error.message()));
      }
      made_.push_back(*folder);
    }
  }
  ~NewFolders() { remove(); }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;

  void keep() { made_.clear(); }

 private:
  void remove() noexcept {
    std::error_code ignored;
    for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
      fs::remove(*folder, ignored);  // only where it is empty
    }
    made_.clear();
  }

  std::vector<fs::path> made_;
};

std::string write_repository(const std::string& repository, const TritonModel& model,
                             const Writer& write) {
  const fs::path folder = fs::path(repository) / model.name;
  const std::string archive = (folder / "1" / "model.pt").string();
  NewFolders folders(folder / "1");
  // Opened first, so that a folder that cannot be written is found before the archive appears.
  io::OutputFile config((folder / "config.pbtxt").string());
  config.write(triton_config(model));
  write(archive);
  config.commit();
  folders.keep();
  return fmt::format("wrote {}\nwrote {}\n", config.path(), archive);
}

std::string write_all(const ExportRequest& request) {
  if (request.out.empty() && request.triton.empty()) {
    throw std::runtime_error("--out: expected a file, or a folder for --triton, got neither");
  }
  const ScriptVariant variant = variant_from(request.variant);
  if (request.inputs == "single" && variant != ScriptVariant::kFullProjection) {
    throw std::runtime_error(fmt::format(
        "--inputs: expected separate for {}, whose Python class has no forward(x), got single",
        request.variant));
  }
  const Weights weights = read_weights(request);
  const TritonModel model = {request.triton_name.empty() ? request.variant : request.triton_name,
                             {variant, weights.embed, weights.heads, mask_from(request.mask),
                              inputs_from(request.inputs), ops_from(request.ops)},
                             weights.dtype,
                             request.max_batch_size};
  if (!request.triton.empty()) check_servable(model);
  const Writer write = load_module(request, weights);
  std::string report =
      fmt::format("{}: embed {}, heads {}, {}, forward({})\n", io::module_name(variant),
                  weights.embed, weights.heads, io::element_name(weights.dtype),
                  fmt::join(io::script_arguments(model.form), ", "));
  if (model.form.ops == ScriptOps::kFused) report += fmt::format("needs {}\n", io::kFusedNeeds);
  if (!request.out.empty()) {
    write(request.out);
    report += fmt::format("wrote {}\n", request.out);
  }
  if (!request.triton.empty()) report += write_repository(request.triton, model, write);
  return report;
}

}  // namespace

CLI::App* add_export_command(CLI::App& app, ExportRequest& request) {
  CLI::App* command = app.add_subcommand("export", "Writes weights as a TorchScript archive");
  command->add_option("--variant", request.variant, "The module")
      ->required()
      ->check(CLI::IsMember({"shared_projection", "full_projection", "inferred_length"}));
  command
      ->add_option("--weights", request.weights,
                   "A checkpoint, safetensors file or archive with the module's parameters")
      ->required();
  command->add_option("--key", request.key, "The entry of a checkpoint that holds the state dict");
  command->add_option("--prefix", request.prefix,
                      "What the parameters' names begin with, such as encoder.attn.; needed where "
                      "the file holds several modules");
  command->add_option("--embed", request.embed, "Embedding size; told by the weights")
      ->check(CLI::PositiveNumber);
  command->add_option("--heads", request.heads, "Heads; told by weights but full_projection's")
      ->check(CLI::PositiveNumber);
  command->add_option("--mask", request.mask, "Whether forward takes a mask")
      ->check(CLI::IsMember({"required", "none", "optional"}))
      ->capture_default_str();
  command
      ->add_option("--ops", request.ops,
                   "portable: runs without this library; fused: calls its ops, which need it")
      ->check(CLI::IsMember({"portable", "fused"}))
      ->capture_default_str();
  command
      ->add_option("--inputs", request.inputs,
                   "forward(values, keys, query), or forward(x) of full_projection")
      ->check(CLI::IsMember({"separate", "single"}))
      ->capture_default_str();
  command->add_flag("--freeze", request.freeze, "Make the parameters constants of the code");
  command->add_option("--out", request.out, "The archive to write");
  command->add_option("--triton", request.triton,
                      "A model repository to write for Triton's PyTorch backend");
  command->add_option("--triton-name", request.triton_name,
                      "The model's name in the repository; the variant's");
  command
      ->add_option("--max-batch-size", request.max_batch_size,
                   "Most rows that Triton merges into a batch; 0: requests bring their batch")
      ->capture_default_str();
  command->footer("Exit code: 0, or 2 where something could not be read or written.");
  return command;
}

std::string run_export(const ExportRequest& request) {
  try {
    return write_all(request);
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

}  // namespace self_attention::exporting
