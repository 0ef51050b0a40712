#include "tools/inspect/inspect_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>

#include "io/checked.h"
#include "io/input_file.h"
#include "io/tensor_index.h"
#include "io/text.h"
#include "tools/inspect/module_match.h"

namespace self_attention::inspect {
namespace {

/// Bytes of the elements, which a stride of 0 can make more than the file has.
std::string bytes_text(const io::TensorEntry& entry) {
  const auto bytes = io::tensor_bytes(entry.shape, io::element_size(entry.type));
  return bytes ? fmt::format("{} bytes", *bytes) : "more than 2^64 bytes";
}

std::string printable(const std::string& name) {
  const std::string quoted = io::in_quotes(name);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

CLI::App* add_inspect_command(CLI::App& app, InspectOptions& options) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Lists what a checkpoint, safetensors file or archive holds; runs nothing in it");
  command->add_option("FILE", options.file, "The file")->required();
  command->add_option("--key", options.key, "The entry of a checkpoint that holds the state dict");
  command->footer("Exit code: 0, or 2 where the file could not be read.");
  return command;
}

std::string describe_file(const InspectOptions& options) {
  const io::InputFile file(options.file);
  const io::TensorIndex index = io::read_tensor_index(file, options.key);
  std::string text = fmt::format("{}: {}, {} bytes, {} tensors{}\n", options.file,
                                 io::format_name(index.format), file.size(), index.tensors.size(),
                                 index.key.empty() ? "" : " under " + io::in_quotes(index.key));
  auto out = std::back_inserter(text);
  for (const auto& [key, value] : index.metadata) {
    fmt::format_to(out, "  metadata {}: {}\n", io::in_quotes(key), io::in_quotes(value));
  }
  std::size_t width = 0;
  for (const auto& entry : index.tensors) width = std::max(width, printable(entry.name).size());
  for (const auto& entry : index.tensors) {
    fmt::format_to(out, "  {:<{}}  {:<8}  {}  {}\n", printable(entry.name), width,
                   io::element_name(entry.type), io::shape_text(entry.shape), bytes_text(entry));
  }
  for (const auto& other : index.others) {
    fmt::format_to(out, "  {}: {}\n", printable(other.name), other.content);
  }
  for (const auto& other : index.top_level) {
    fmt::format_to(out, "  beside it, {}: {}\n", printable(other.name), other.content);
  }
  for (const ModuleMatch& match : match_modules(index)) {
    const std::string place = match.prefix.empty() ? "" : " at " + io::in_quotes(match.prefix);
    const std::string heads =
        match.heads ? fmt::format(", heads {}", *match.heads) : ", heads not told by the shapes";
    fmt::format_to(out, "fits {}{}: embed {}{}\n", match.module, place, match.embed, heads);
  }
  return text;
}

}  // namespace self_attention::inspect
