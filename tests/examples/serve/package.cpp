#include "package.h"

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <filesystem>
#include <memory>
#include <unordered_map>

#include "module.h"

namespace serve {
namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;

std::shared_ptr<Loader> open_package(const std::string& path, int threads) {
  try {
    if (!std::filesystem::is_regular_file(path)) throw Error("no such file");
    return std::make_shared<Loader>(path, "model", /*run_single_threaded=*/false,
                                    static_cast<std::size_t>(threads));
  } catch (const std::exception& error) {
    throw Error("[serve] model: expected a package of AOTInductor, got " + path + ": " +
                short_message(error));
  }
}

ModelInfo parse_info(Loader& loader, const std::string& path) {
  try {
    const auto metadata = loader.get_metadata();
    ModelInfo info;
    info.variant = metadata.at("variant");
    info.embed = std::stoll(metadata.at("embed"));
    info.heads = std::stoll(metadata.at("heads"));
    info.takes_mask = metadata.at("mask") == "required";
    info.dtype = loader.get_runner()->extract_constants_map(false).begin()->second.scalar_type();
    return info;
  } catch (const std::logic_error&) {  // no such entry, or no number in it
    throw Error("[serve] model: expected a package of scripts/compile_module.py, got " + path +
                ", without its metadata");
  }
}

/// Compiled code trusts its arguments: with any others than those that it was made for it would
/// read memory that is not theirs.
void check_arguments(const ModelInfo& info, const Arguments& arguments) {
  const std::size_t expected = info.takes_mask ? 4 : 3;
  if (arguments.size() != expected) {
    throw Error("[serve] arguments: expected " + std::to_string(expected) + " tensors, got " +
                std::to_string(arguments.size()));
  }
  for (const torch::Tensor& tensor : arguments) {
    if (!tensor.device().is_cpu()) {
      throw Error("[serve] arguments: expected tensors on the CPU, got " + tensor.device().str());
    }
  }
  check_shapes(info, arguments);
}

/// The mask as the package takes it: bool, (N, 1, 1, K).
torch::Tensor padding_mask(const Arguments& arguments) {
  const torch::Tensor& mask = arguments.back();
  const std::int64_t keys = arguments.front().size(1);
  std::vector<std::int64_t> sizes(4 - std::min<std::int64_t>(mask.dim(), 4), 1);
  sizes.insert(sizes.end(), mask.sizes().begin(), mask.sizes().end());
  if (sizes[1] != 1 || sizes[2] != 1) {
    throw Error("[serve] mask: expected shape (N, 1, 1, K) for a package, got " +
                c10::str(mask.sizes()));
  }
  return (mask != 0).view(sizes).expand({arguments.front().size(0), 1, 1, keys}).contiguous();
}

}  // namespace

Model load_package(const std::string& path, int threads) {
  const std::shared_ptr<Loader> loader = open_package(path, threads);
  Model model;
  model.info = parse_info(*loader, path);
  model.set_weights = [loader](const Weights& weights) {
    std::unordered_map<std::string, torch::Tensor> constants(weights.begin(), weights.end());
    loader->load_constants(constants, /*use_inactive=*/false, /*check_full_update=*/true);
  };
  model.forward = [loader, info = model.info](const Arguments& arguments) {
    check_arguments(info, arguments);
    std::vector<torch::Tensor> inputs;
    for (std::size_t i = 0; i < 3; ++i) inputs.push_back(arguments[i].contiguous());
    if (info.takes_mask) inputs.push_back(padding_mask(arguments));
    return loader->run(inputs).at(0);
  };
  return model;
}

}  // namespace serve
