#include "archive.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace serve {
namespace {

constexpr auto kInfoFile = "self_attention.json";

torch::jit::Module load_module(const std::string& path, torch::jit::ExtraFilesMap& extra_files) {
  try {
    return torch::jit::load(path, torch::kCPU, extra_files);
  } catch (const std::exception& error) {
    throw Error("[serve] archive: expected a TorchScript archive, got " + path + ": " +
                short_message(error));
  }
}

Archive describe(torch::jit::Module module, const nlohmann::json& info) {
  Archive archive;
  // A frozen archive has none, and runs as what it was frozen as.
  for (const torch::Tensor& parameter : module.parameters())
    archive.dtype = parameter.scalar_type();
  archive.module = std::move(module);
  archive.variant = info.at("variant").get<std::string>();
  archive.embed = info.at("embed").get<std::int64_t>();
  archive.heads = info.at("heads").get<std::int64_t>();
  archive.takes_mask = info.at("mask") == "required";
  archive.takes_single = info.at("inputs") == "single";
  archive.is_causal = info.value("is_causal", false);
  archive.is_frozen = info.at("frozen").get<bool>();
  return archive;
}

}  // namespace

Archive load_archive(const std::string& path) {
  torch::jit::ExtraFilesMap extra_files = {{kInfoFile, ""}};
  torch::jit::Module module = load_module(path, extra_files);
  try {
    return describe(std::move(module), nlohmann::json::parse(extra_files.at(kInfoFile)));
  } catch (const nlohmann::json::exception&) {
    throw Error("[serve] archive: expected one of `self-attention export`, got " + path +
                ", without a readable " + kInfoFile);
  }
}

std::string short_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  constexpr std::string_view kSpaces = " \n";
  const auto last = text.find_last_not_of(kSpaces);
  if (last == std::string::npos) return "no message";
  const std::string line = text.substr(text.rfind('\n', last) + 1, last - text.rfind('\n', last));
  // The library's own messages begin with who says them.
  const auto ours = line.find(": [");
  return ours == std::string::npos ? line : line.substr(ours + 2);
}

}  // namespace serve
