#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model_server.h"

namespace serve {

struct LoadOptions {
  int clients = 8;
  std::int64_t requests = 20000;
  std::int64_t batch = 1;
  std::vector<std::int64_t> lengths = {1, 128};  ///< the shortest and the longest
  bool flood = false;                            ///< clients send without waiting for answers
};

/// Arguments of requests, each of another length. The same number gives the same arguments.
class Requests {
 public:
  Requests(const ModelInfo& info, const LoadOptions& options);
  Arguments make(std::int64_t number) const;

 private:
  Arguments longest_;
  std::vector<std::int64_t> lengths_;
};

struct LoadResult {
  std::int64_t answered = 0;
  std::int64_t refused = 0;
  std::int64_t failed = 0;
  double seconds = 0;
  std::vector<double> milliseconds;  ///< of each answered request, from sending to the answer
  std::string message;               ///< of a request that was refused or failed

  void add(const LoadResult& other);
};

/// Sends the requests with numbers from `first` to before `last` from all clients.
LoadResult send_requests(ModelServer& server, const Requests& requests, const LoadOptions& options,
                         std::int64_t first, std::int64_t last);

/// Calls `work(number)` for each number from `first` to before `last` on so many threads.
void share_out(int threads, std::int64_t first, std::int64_t last,
               const std::function<void(int thread, std::int64_t number)>& work);

}  // namespace serve
