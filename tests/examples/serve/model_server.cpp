#include "model_server.h"

#include <ATen/Parallel.h>

#include <utility>

namespace serve {
namespace {

constexpr std::int64_t kWarmUpLength = 16;

/// Zeros of a shape that the model takes. A length of all heads' sizes divides into heads, which
/// InferredLengthAttention reshapes it to.
Arguments warm_up_arguments(const ModelInfo& info) {
  const std::int64_t length = kWarmUpLength * info.heads;
  Arguments arguments(info.takes_single ? 1 : 3, torch::zeros({1, length, info.embed}, info.dtype));
  if (info.takes_mask) arguments.push_back(torch::ones({1, 1, 1, length}, torch::kBool));
  return arguments;
}

}  // namespace

ModelServer::ModelServer(Model model, const ServerOptions& options)
    : model_(std::move(model)), queue_(options.queue) {
  // Requests run side by side: threads inside one of them would take the cores of the others.
  at::set_num_threads(1);
  std::vector<std::future<void>> ready;
  for (int i = 0; i < options.threads; ++i) {
    std::promise<void> promise;
    ready.push_back(promise.get_future());
    threads_.emplace_back(&ModelServer::work, this, std::move(promise), options);
  }
  try {
    for (std::future<void>& thread : ready) thread.get();
  } catch (...) {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

ModelServer::~ModelServer() {
  queue_.close();
  for (std::thread& thread : threads_) thread.join();
}

std::future<torch::Tensor> ModelServer::submit(Arguments arguments) {
  Request request = {std::move(arguments), {}};
  std::future<torch::Tensor> answer = request.answer.get_future();
  if (!queue_.push(request)) {
    const std::string capacity = std::to_string(queue_.capacity());
    throw Error("[serve] queue: expected fewer than " + capacity + " waiting requests, got " +
                capacity + "; try again later");
  }
  return answer;
}

void ModelServer::work(std::promise<void> ready, const ServerOptions& options) {
  at::set_num_threads(1);  // OpenMP keeps a number for every thread
  const torch::NoGradGuard no_grad;
  try {
    const Arguments zeros = warm_up_arguments(model_.info);
    for (int i = 0; i < options.warm_up; ++i) model_.forward(zeros);
    ready.set_value();
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  while (std::optional<Request> request = queue_.pop()) {
    try {
      torch::Tensor output = model_.forward(request->arguments);
      request->arguments.clear();  // before the client goes on, who may look at the memory
      request->answer.set_value(std::move(output));
    } catch (...) {
      request->answer.set_exception(std::current_exception());
    }
  }
}

}  // namespace serve
