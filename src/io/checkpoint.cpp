#include <ATen/MemoryOverlap.h>
#include <self_attention/io/checkpoint.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "io/format_error.h"
#include "io/input_file.h"
#include "io/output_file.h"
#include "io/safetensors_writer.h"
#include "io/tensor_index.h"
#include "io/tensor_source.h"
#include "io/text.h"
#include "io/torch_types.h"
#include "io/torch_writer.h"
#include "ops/input_checks.h"

namespace self_attention {
namespace {

using State = torch::OrderedDict<std::string, torch::Tensor>;

/// Parameters and buffers, those of children included; undefined ones are left out, as in Python.
State state_of(const torch::nn::Module& module) {
  State state = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) state.insert(buffer.key(), buffer.value());
  }
  return state;
}

std::string tensor_text(torch::ScalarType type, torch::IntArrayRef shape) {
  return dtype_text(type) + " " + shape_text(shape);
}

/// Throws unless numbers can be copied into the tensor: what fails must fail before the first copy.
void check_target(const std::string& name, const torch::Tensor& target) {
  std::string reason;
  if (target.layout() != torch::kStrided || target.is_nested()) {
    reason = "one that is not dense";
  } else if (target.is_meta()) {
    reason = "one on the meta device, which holds no numbers";
  } else if (target.is_inference() && !c10::InferenceMode::is_enabled()) {
    reason = "an inference tensor; call it under c10::InferenceMode";
  } else if (at::has_internal_overlap(target) == at::MemOverlap::Yes) {
    reason = "one whose elements share memory, as after expand";
  }
  TORCH_CHECK_VALUE(reason.empty(),
                    "[load_state_dict] module: expected tensors that can be written to, got ", name,
                    ", ", reason);
}

/// What the module calls the file's `name`; nothing for names that the options leave out.
std::optional<std::string> module_name(const std::string& name,
                                       const LoadStateDictOptions& options) {
  if (!name.starts_with(options.strip_prefix())) {
    return std::nullopt;
  }
  const std::string rest = name.substr(options.strip_prefix().size());
  const std::pair<const std::string, std::string>* longest = nullptr;
  for (const auto& entry : options.map_prefixes()) {
    if (rest.starts_with(entry.first) &&
        (longest == nullptr || entry.first.size() > longest->first.size())) {
      longest = &entry;
    }
  }
  return longest == nullptr ? rest : longest->second + rest.substr(longest->first.size());
}

/// A parameter or buffer and the file's tensor for it.
struct Match {
  torch::Tensor target;
  io::TensorEntry entry;
};

/// The comparison of a file's names, shapes and dtypes with a module's, before any byte is read.
class Matching {
 public:
  Matching(const State& state, const LoadStateDictOptions& options)
      : state_(state), options_(options) {}

  void compare(const io::TensorIndex& index) {
    for (const io::TensorEntry& entry : index.tensors) {
      const auto name = module_name(entry.name, options_);
      if (!name) continue;
      const auto parts = options_.split().find(*name);
      if (parts == options_.split().end()) {
        add_tensor(*name, entry);
      } else {
        add_parts(*name, parts->second, entry);
      }
    }
    // Archives of modules hold flags and numbers beside the tensors, which are nobody's parameters.
    const bool is_module_archive = index.format == io::FileFormat::kTorchScript;
    for (const io::OtherEntry& other : index.others) {
      const auto name = module_name(other.name, options_);
      if (!name) continue;
      if (const torch::Tensor* target = state_.find(*name)) {
        if (claim(*name)) mismatch(*name, *target, other.content);
      } else if (!is_module_archive) {
        report.unexpected.push_back(*name);
      }
    }
    for (const auto& item : state_) {
      if (!claimed_.contains(item.key())) report.missing.push_back(item.key());
    }
  }

  StateDictReport report;
  std::vector<Match> matches;

 private:
  void add_parts(const std::string& whole, const std::vector<std::string>& names,
                 const io::TensorEntry& entry) {
    TORCH_CHECK_VALUE(!names.empty(), "[load_state_dict] options.split: expected names for ", whole,
                      ", got none");
    const auto count = static_cast<int64_t>(names.size());
    if (entry.shape.empty() || entry.shape[0] % count != 0) {
      report.mismatched.push_back({whole, c10::str(count, " equal parts along its first dimension"),
                                   tensor_text(io::scalar_type(entry.type), entry.shape)});
      return;
    }
    io::TensorEntry part = entry;
    part.shape[0] /= count;
    const auto step = static_cast<std::uint64_t>(part.shape[0] * part.strides[0]);
    for (const std::string& name : names) {
      add_tensor(name, part);
      part.storage_offset += step;
    }
  }

  void add_tensor(const std::string& name, const io::TensorEntry& entry) {
    const torch::Tensor* target = state_.find(name);
    if (target == nullptr) {
      report.unexpected.push_back(name);
      return;
    }
    if (!claim(name)) return;
    const torch::ScalarType type = io::scalar_type(entry.type);
    const bool dtype_fits = type == target->scalar_type() || options_.convert_dtype();
    if (target->sizes() != entry.shape || !dtype_fits) {
      mismatch(name, *target, tensor_text(type, entry.shape));
      return;
    }
    matches.push_back({*target, entry});
  }

  /// False where another entry of the file already has that name in the module.
  bool claim(const std::string& name) {
    const bool first = claimed_.emplace(name, true).second;
    if (!first) report.unexpected.push_back(name + " (a second time)");
    return first;
  }

  void mismatch(const std::string& name, const torch::Tensor& target, std::string got) {
    report.mismatched.push_back(
        {name, tensor_text(target.scalar_type(), target.sizes()), std::move(got)});
  }

  const State& state_;
  const LoadStateDictOptions& options_;
  std::map<std::string, bool> claimed_;
};

/// Reads the tensors that matched, each storage once. Nothing of the module changes.
std::vector<torch::Tensor> read_matches(const io::InputFile& file, const io::TensorIndex& index,
                                        const std::vector<Match>& matches) {
  std::map<std::size_t, torch::Tensor> storages;
  std::vector<torch::Tensor> tensors;
  tensors.reserve(matches.size());
  for (const Match& match : matches) {
    const io::TensorEntry& entry = match.entry;
    torch::Tensor& bytes = storages[entry.storage];
    if (!bytes.defined()) {
      const io::TensorStorage& storage = index.storages[entry.storage];
      bytes = torch::empty({static_cast<int64_t>(storage.bytes)}, torch::kUInt8);
      io::read_storage(file, storage,
                       std::as_writable_bytes(std::span(bytes.mutable_data_ptr<uint8_t>(),
                                                        static_cast<std::size_t>(storage.bytes))));
    }
    const auto size = static_cast<int64_t>(io::element_size(entry.type));
    const torch::Tensor elements =
        bytes.narrow(0, 0, bytes.numel() / size * size).view(io::scalar_type(entry.type));
    const torch::Tensor view =
        elements.as_strided(entry.shape, entry.strides, static_cast<int64_t>(entry.storage_offset));
    // Moved here, since another device can run out of memory and nothing may fail once the module
    // is written to. On the CPU the last copy converts, without memory of its own.
    tensors.push_back(match.target.is_cpu() ? view : view.to(match.target.options()));
  }
  return tensors;
}

void append_names(std::string& text, std::string_view title,
                  const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  if (names.empty()) return;
  text += c10::str("\n  ", title, ": ");
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + io::in_quotes(names[i]);
  }
  if (names.size() > kShown) text += c10::str(" and ", names.size() - kShown, " more");
}

StateDictReport load(torch::nn::Module& module, const std::string& path,
                     const LoadStateDictOptions& options) {
  const State state = state_of(module);
  for (const auto& item : state) check_target(item.key(), item.value());
  const io::InputFile file(path);
  const io::TensorIndex index = io::read_tensor_index(file, options.key());
  Matching matching(state, options);
  matching.compare(index);
  TORCH_CHECK_VALUE(!options.strict() || matching.report.matches(),
                    "[load_state_dict] file: expected the state dict of ", module.name(), ", got ",
                    path, ", which differs:", matching.report.text());
  const torch::NoGradGuard no_grad;
  const auto tensors = read_matches(file, index, matching.matches);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    matching.matches[i].target.copy_(tensors[i]);
  }
  return std::move(matching.report);
}

/// The contents of a state dict, one tensor at a time.
class StateSource {
 public:
  explicit StateSource(const State& state) {
    for (const auto& item : state) {
      const torch::Tensor& tensor = item.value();
      const auto type = io::element_type(tensor.scalar_type());
      TORCH_CHECK_VALUE(type && tensor.layout() == torch::kStrided && !tensor.is_nested(),
                        "[save_state_dict] module: expected dense tensors of a dtype that files "
                        "hold, got ",
                        item.key(), ", ", c10::toString(tensor.scalar_type()), " ",
                        tensor.layout());
      descriptions.push_back({item.key(), *type, tensor.sizes().vec()});
      tensors_.push_back(tensor);
    }
  }

  std::span<const std::byte> bytes(std::size_t index) {
    current_ = tensors_[index].detach().to(torch::kCPU).contiguous();
    return {static_cast<const std::byte*>(current_.const_data_ptr()), current_.nbytes()};
  }

  std::vector<io::TensorDescription> descriptions;

 private:
  std::vector<torch::Tensor> tensors_;
  torch::Tensor current_;
};

void save(const torch::nn::Module& module, const std::string& path) {
  const bool safetensors = path.ends_with(".safetensors");
  TORCH_CHECK_VALUE(safetensors || path.ends_with(".pt") || path.ends_with(".pth"),
                    "[save_state_dict] file: expected a name that ends in .safetensors, .pt or "
                    ".pth, got ",
                    path);
  const torch::NoGradGuard no_grad;
  StateSource source(state_of(module));
  const io::TensorBytes bytes = [&](std::size_t index) { return source.bytes(index); };
  io::OutputFile file(path);
  if (safetensors) {
    io::write_safetensors(file, source.descriptions, {{"format", "pt"}}, bytes);
  } else {
    io::write_torch_zip(file, source.descriptions, bytes);
  }
  file.commit();
}

}  // namespace

std::string StateDictReport::text() const {
  std::string text;
  append_names(text, "missing", missing);
  append_names(text, "unexpected", unexpected);
  for (const Mismatch& mismatch : mismatched) {
    text +=
        c10::str("\n  ", mismatch.name, ": expected ", mismatch.expected, ", got ", mismatch.got);
  }
  return text;
}

LoadStateDictOptions multihead_attention_options(const std::string& prefix) {
  LoadStateDictOptions::SplitMap split;
  for (const char* kind : {"weight", "bias"}) {
    auto& parts = split[std::string("in_proj_") + kind];
    for (const char* layer : {"q_linear.", "k_linear.", "v_linear."}) {
      parts.push_back(std::string(layer) + kind);
    }
  }
  return LoadStateDictOptions().strip_prefix(prefix).split(split).map_prefixes(
      {{"out_proj.", "output_linear."}});
}

StateDictReport load_state_dict(torch::nn::Module& module, const std::string& file,
                                const LoadStateDictOptions& options) {
  try {
    return load(module, file, options);
  } catch (const io::FormatError& error) {
    TORCH_CHECK_VALUE(false, "[load_state_dict] file: ", error.what());
  }
}

void save_state_dict(const torch::nn::Module& module, const std::string& file) {
  try {
    save(module, file);
  } catch (const io::FormatError& error) {
    TORCH_CHECK_VALUE(false, "[save_state_dict] file: ", error.what());
  }
}

}  // namespace self_attention
