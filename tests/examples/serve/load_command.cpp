#include "load_command.h"

#include <ATen/Parallel.h>
#include <self_attention/io/checkpoint.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <iostream>

#include "module.h"

namespace serve {
namespace {

/// Rounds of a run: what is compared takes turns, so that both see the same machine.
constexpr int kRounds = 20;

double resident_mebibytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  file >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto index = static_cast<std::size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(index, sorted.size() - 1)];
}

/// The module whose parameters the model has.
Forward load_module(const LoadCommand& command, const Model& model) {
  if (!model.set_weights || command.model.ends_with(".pt2")) {
    throw Error("[serve] --direct: expected an archive that is not frozen, got " + command.model);
  }
  const LibraryModule module = make_module(model.info);
  self_attention::load_state_dict(*module.module, command.model);
  return module.forward;
}

/// Seconds of those requests, by as many threads as the server has.
double call_directly(const Forward& forward, const Requests& requests, int threads,
                     std::int64_t first, std::int64_t last) {
  const auto start = std::chrono::steady_clock::now();
  share_out(threads, first, last, [&](int, std::int64_t number) {
    at::set_num_threads(1);
    const torch::NoGradGuard no_grad;
    forward(requests.make(number));
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(LoadResult& result) {
  std::ranges::sort(result.milliseconds);
  std::cout << "answered: " << result.answered << "\nrefused: " << result.refused
            << "\nfailed: " << result.failed
            << "\nrequests a second: " << static_cast<double>(result.answered) / result.seconds
            << "\n";
  for (const auto& [name, share] : {std::pair("p50", 0.5), {"p90", 0.9}, {"p99", 0.99}}) {
    std::cout << name << " ms: " << percentile(result.milliseconds, share) << "\n";
  }
  if (!result.message.empty()) std::cout << "message: " << result.message << "\n";
}

}  // namespace

CLI::App* add_load_command(CLI::App& app, LoadCommand& command) {
  CLI::App* load = app.add_subcommand("load", "Sends random requests from many clients");
  load->add_option("model", command.model, kModelHelp)->required();
  load->add_option("--threads", command.server.threads, "Threads that compute")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  load->add_option("--queue", command.server.queue, "Most requests that wait")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  load->add_option("--clients", command.load.clients, "Threads that send requests")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  load->add_option("--requests", command.load.requests, "Requests of all clients together")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  load->add_option("--batch", command.load.batch, "Rows of a request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  load->add_option("--lengths", command.load.lengths, "The shortest and the longest length")
      ->expected(2)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  load->add_flag("--flood", command.load.flood, "Send without waiting for answers");
  load->add_flag("--direct", command.direct, "Call the module directly too, in turns");
  return load;
}

int run_load(const LoadCommand& command) {
  if (command.load.lengths.front() > command.load.lengths.back()) {
    throw Error("[serve] --lengths: expected the shorter one first, got " +
                std::to_string(command.load.lengths.front()) + " and " +
                std::to_string(command.load.lengths.back()));
  }
  const Model model = load_model(command.model, command.server.threads);
  const Forward module = command.direct ? load_module(command, model) : Forward();
  const Requests requests(model.info, command.load);
  ModelServer server(model, command.server);
  LoadResult total;
  double processor_seconds = 0;
  double direct_seconds = 0;
  double early_memory = 0;
  for (std::int64_t round = 0; round < kRounds; ++round) {
    const std::int64_t first = command.load.requests * round / kRounds;
    const std::int64_t last = command.load.requests * (round + 1) / kRounds;
    const std::clock_t before = std::clock();
    total.add(send_requests(server, requests, command.load, first, last));
    processor_seconds += static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    if (module) {
      direct_seconds += call_directly(module, requests, command.server.threads, first, last);
    }
    if (round == kRounds / 4) early_memory = resident_mebibytes();
  }
  std::cout << std::setprecision(4);
  print(total);
  std::cout << "CPU ms a request: "
            << 1000 * processor_seconds /
                   static_cast<double>(std::max<std::int64_t>(total.answered, 1))
            << "\nMiB after a quarter: " << early_memory
            << "\nMiB at the end: " << resident_mebibytes() << "\n";
  if (module) {
    std::cout << "direct requests a second: "
              << static_cast<double>(command.load.requests) / direct_seconds
              << "\nserved by direct: "
              << direct_seconds * static_cast<double>(total.answered) /
                     (total.seconds * static_cast<double>(command.load.requests))
              << "\n";
  }
  return total.failed == 0 ? 0 : 1;
}

}  // namespace serve
