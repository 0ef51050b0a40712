#include "launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace language_model {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

/// A number of the environment, or what stands for none.
int number(const char* name, int least, int most, int absent) {
  const std::string_view text = variable(name);
  if (text.empty()) return absent;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw std::runtime_error(
        fmt::format("{}: expected a number from {} to {}, got {}", name, least, most, text));
  }
  return value;
}

}  // namespace

Launch read_launch() {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (variable("RANK").empty() != variable("WORLD_SIZE").empty()) {
    throw std::runtime_error("RANK and WORLD_SIZE: expected both or neither, got one");
  }
  Launch launch;
  launch.size = number("WORLD_SIZE", 1, kMost, 1);
  launch.rank = number("RANK", 0, launch.size - 1, 0);
  launch.local_rank = number("LOCAL_RANK", 0, kMost, launch.rank);
  launch.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt = number("TORCHELASTIC_RESTART_COUNT", 0, kMost, 0);
  if (launch.size == 1) return launch;
  launch.address = variable("MASTER_ADDR");
  launch.port = static_cast<std::uint16_t>(
      number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max(), 0));
  if (launch.address.empty() || launch.port == 0) {
    throw std::runtime_error("MASTER_ADDR and MASTER_PORT: expected where rank 0 is, got none");
  }
  return launch;
}

}  // namespace language_model
