#include "tools/parity/environment.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace self_attention::parity {
namespace {

/// The first "model name" of /proc/cpuinfo, as the exporter reads it; empty where there is none.
std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::string value = line.substr(std::min(line.find(':'), line.size() - 1) + 1);
    const std::size_t first = value.find_first_not_of(" \t");
    if (first == std::string::npos) return "";
    return value.substr(first, value.find_last_not_of(" \t\r") + 1 - first);
  }
  return "";
}

}  // namespace

Environment current_environment() {
  return {TORCH_VERSION, at::get_cpu_capability(), cpu_model(), at::get_num_threads()};
}

void use_threads(int threads) { at::set_num_threads(threads); }

bool has_cuda_device() { return at::globalContext().hasCUDA(); }

}  // namespace self_attention::parity
