#include "clients.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

namespace serve {
namespace {

using Clock = std::chrono::steady_clock;

struct Sent {
  Clock::time_point start;
  std::future<torch::Tensor> answer;
};

void receive(Sent sent, LoadResult& result) {
  try {
    sent.answer.get();
  } catch (const std::exception& error) {
    ++result.failed;
    result.message = short_message(error);
    return;
  }
  ++result.answered;
  result.milliseconds.push_back(
      std::chrono::duration<double, std::milli>(Clock::now() - sent.start).count());
}

}  // namespace

Requests::Requests(const ModelInfo& info, const LoadOptions& options) : lengths_(options.lengths) {
  torch::manual_seed(0);
  const std::int64_t longest = lengths_.back();
  for (int i = 0; i < (info.takes_single ? 1 : 3); ++i) {
    longest_.push_back(torch::randn({options.batch, longest, info.embed}).to(info.dtype));
  }
  if (info.takes_mask) longest_.push_back(torch::rand({options.batch, 1, 1, longest}) < 0.8);
}

Arguments Requests::make(std::int64_t number) const {
  std::mt19937 generator(static_cast<std::uint32_t>(number));
  const auto length = std::uniform_int_distribution(lengths_.front(), lengths_.back())(generator);
  Arguments arguments;
  for (const torch::Tensor& tensor : longest_) {
    // A copy, as what comes from a network has memory of its own.
    const std::int64_t axis = tensor.dim() == 4 ? 3 : 1;
    arguments.push_back(tensor.narrow(axis, 0, length).clone(torch::MemoryFormat::Contiguous));
  }
  return arguments;
}

void LoadResult::add(const LoadResult& other) {
  answered += other.answered;
  refused += other.refused;
  failed += other.failed;
  seconds += other.seconds;
  milliseconds.insert(milliseconds.end(), other.milliseconds.begin(), other.milliseconds.end());
  if (!other.message.empty()) message = other.message;
}

void share_out(int threads, std::int64_t first, std::int64_t last,
               const std::function<void(int thread, std::int64_t number)>& work) {
  std::atomic<std::int64_t> next = first;
  std::vector<std::thread> running;
  running.reserve(threads);
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::int64_t number = next++; number < last; number = next++) work(thread, number);
    });
  }
  for (std::thread& thread : running) thread.join();
}

LoadResult send_requests(ModelServer& server, const Requests& requests, const LoadOptions& options,
                         std::int64_t first, std::int64_t last) {
  std::vector<LoadResult> results(options.clients);
  std::vector<std::vector<Sent>> waiting(options.clients);
  const Clock::time_point start = Clock::now();
  share_out(options.clients, first, last, [&](int client, std::int64_t number) {
    LoadResult& result = results[client];
    Arguments arguments = requests.make(number);
    Sent sent = {Clock::now(), {}};
    try {
      sent.answer = server.submit(std::move(arguments));
    } catch (const Error& error) {
      ++result.refused;
      result.message = error.what();
      return;
    }
    if (options.flood) {
      waiting[client].push_back(std::move(sent));
    } else {
      receive(std::move(sent), result);
    }
  });
  LoadResult total;
  for (int client = 0; client < options.clients; ++client) {
    for (Sent& sent : waiting[client]) receive(std::move(sent), results[client]);
    total.add(results[client]);
  }
  total.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return total;
}

}  // namespace serve
