#include <fmt/format.h>

#include <stdexcept>

#include "ranks.h"

namespace language_model {

const char* const kProcesses = "one; gloo's headers were absent when this was built";

std::unique_ptr<Ranks> join_ranks(const Launch& launch, int, torch::Device) {
  if (launch.size > 1) {
    throw std::runtime_error(fmt::format(
        "WORLD_SIZE: expected 1, since gloo's headers were absent when this was built, got {}",
        launch.size));
  }
  return std::make_unique<Ranks>();
}

}  // namespace language_model
