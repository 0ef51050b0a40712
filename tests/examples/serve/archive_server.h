#pragma once

#include <torch/script.h>

#include <cstddef>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "archive.h"
#include "bounded_queue.h"

namespace serve {

struct ServerOptions {
  int threads = 2;         ///< that compute, each of them one request at a time
  std::size_t queue = 64;  ///< most requests that wait
  int warm_up = 3;         ///< calls of each thread before the first request
};

/// The arguments of forward, in its order.
using Arguments = std::vector<torch::Tensor>;

/// Some threads that call one module, fed by a queue.
class ArchiveServer {
 public:
  /// Returns once every thread has made its first calls, in which TorchScript compiles.
  ArchiveServer(const Archive& archive, const ServerOptions& options);
  /// Answers what still waits.
  ~ArchiveServer();
  ArchiveServer(const ArchiveServer&) = delete;
  ArchiveServer& operator=(const ArchiveServer&) = delete;

  /// The output, or what forward threw. Throws Error where the queue is full. Any thread may call.
  std::future<torch::Tensor> submit(Arguments arguments);

 private:
  struct Request {
    Arguments arguments;
    std::promise<torch::Tensor> answer;
  };

  void work(std::promise<void> ready, const ServerOptions& options);

  Archive archive_;
  BoundedQueue<Request> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace serve
