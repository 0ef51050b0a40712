#pragma once

#include <cstddef>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "bounded_queue.h"
#include "model.h"

namespace serve {

struct ServerOptions {
  int threads = 2;         ///< that compute, each of them one request at a time
  std::size_t queue = 64;  ///< most requests that wait
  int warm_up = 3;         ///< calls of each thread before the first request
};

/// Some threads that call one model, fed by a queue.
class ModelServer {
 public:
  /// Returns once every thread has made its first calls, in which TorchScript compiles.
  ModelServer(Model model, const ServerOptions& options);
  /// Answers what still waits.
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  /// The output, or what forward threw. Throws Error where the queue is full. Any thread may call.
  std::future<torch::Tensor> submit(Arguments arguments);

 private:
  struct Request {
    Arguments arguments;
    std::promise<torch::Tensor> answer;
  };

  void work(std::promise<void> ready, const ServerOptions& options);

  const Model model_;
  BoundedQueue<Request> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace serve
