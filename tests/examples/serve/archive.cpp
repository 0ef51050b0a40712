#include "archive.h"

#include <torch/script.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace serve {
namespace {

constexpr auto kInfoFile = "self_attention.json";

torch::jit::Module load_module(const std::string& path, torch::jit::ExtraFilesMap& extra_files) {
  try {
    return torch::jit::load(path, torch::kCPU, extra_files);
  } catch (const std::exception& error) {
    throw Error("[serve] model: expected a TorchScript archive, got " + path + ": " +
                short_message(error));
  }
}

ModelInfo parse_info(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  ModelInfo info;
  info.variant = json.at("variant").get<std::string>();
  info.embed = json.at("embed").get<std::int64_t>();
  info.heads = json.at("heads").get<std::int64_t>();
  info.takes_mask = json.at("mask") == "required";
  info.takes_single = json.at("inputs") == "single";
  info.is_causal = json.value("is_causal", false);
  return info;
}

void copy_weights(const torch::jit::Module& module, const Weights& weights) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : module.named_parameters()) {
    parameter.value.copy_(weights.at(parameter.name));
  }
}

}  // namespace

Model load_archive(const std::string& path) {
  torch::jit::ExtraFilesMap extra_files = {{kInfoFile, ""}};
  torch::jit::Module module = load_module(path, extra_files);
  Model model;
  try {
    model.info = parse_info(extra_files.at(kInfoFile));
  } catch (const nlohmann::json::exception&) {
    throw Error("[serve] model: expected an archive of `self-attention export`, got " + path +
                ", without a readable " + kInfoFile);
  }
  // A frozen archive has none, and runs as what it was frozen as.
  for (const torch::Tensor& parameter : module.parameters()) {
    model.info.dtype = parameter.scalar_type();
    model.set_weights = [module](const Weights& weights) { copy_weights(module, weights); };
  }
  model.forward = [module](const Arguments& arguments) {
    torch::jit::Module shared = module;  // forward is no const member
    return shared.forward({arguments.begin(), arguments.end()}).toTensor();
  };
  return model;
}

}  // namespace serve
