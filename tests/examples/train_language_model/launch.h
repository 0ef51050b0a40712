#pragma once

#include <cstdint>
#include <string>

namespace language_model {

/// How many processes this program can train in, and by what.
extern const char* const kProcesses;

/// What torchrun, or whoever starts several processes, tells each in its environment.
struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string address;
  std::uint16_t port = 0;
  bool agent_store = false;  ///< the launcher serves the store itself
  int attempt = 0;           ///< of the launcher, which starts all again when one dies
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and torchrun's own variables.
/// Without the first two, one process. Throws std::runtime_error for those that do not fit.
Launch read_launch();

}  // namespace language_model
