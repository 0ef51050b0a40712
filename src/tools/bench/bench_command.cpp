#include "tools/bench/bench_command.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "io/output_file.h"
#include "tools/bench/bench_cases.h"
#include "tools/bench/bench_run.h"

namespace self_attention::bench {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostRepetitions = 1000;
constexpr double kLeastSeconds = 0.001;
constexpr double kMostSeconds = 3600;

/// The usual report, and JSON beside it.
class TwoReporters : public benchmark::BenchmarkReporter {
 public:
  TwoReporters() : display_(*benchmark::CreateDefaultDisplayReporter()) {
    json_.SetOutputStream(&text_);
  }

  bool ReportContext(const Context& context) override {
    return display_.ReportContext(context) && json_.ReportContext(context);
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    display_.ReportRuns(runs);
    json_.ReportRuns(runs);
  }

  void Finalize() override {
    display_.Finalize();
    json_.Finalize();
  }

  std::string json() const { return text_.str(); }

 private:
  benchmark::BenchmarkReporter& display_;  // the library's own
  benchmark::JSONReporter json_;
  std::ostringstream text_;
};

/// The calls of the case measured last: Google Benchmark asks for one case many times over.
class CallCache {
 public:
  const BenchCalls& get(const BenchCase& bench_case) {
    if (of_ != &bench_case) {
      calls_ = {};  // before the next tensors are made
      calls_ = make_calls(bench_case);
      of_ = &bench_case;
    }
    return calls_;
  }

 private:
  const BenchCase* of_ = nullptr;
  BenchCalls calls_;
};

using Call = std::function<void()> BenchCalls::*;

void measure(benchmark::State& state, const BenchCase& bench_case, int threads, Call call,
             CallCache& cache) {
  use_threads(threads);
  const BenchCalls& calls = cache.get(bench_case);
  if (call == &BenchCalls::attention) state.SetLabel(calls.kernel);
  for ([[maybe_unused]] const auto _ : state) (calls.*call)();
  if (bench_case.query_length == 1) {
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * read_bytes(bench_case));
  } else {
    state.counters["FLOPS"] =
        benchmark::Counter(needed_flops(bench_case), benchmark::Counter::kIsIterationInvariantRate);
  }
}

std::vector<const BenchCase*> select_cases(const std::string& filter) {
  std::vector<const BenchCase*> selected;
  for (const BenchCase& bench_case : bench_cases()) {
    if (bench_case.name.find(filter) != std::string::npos) selected.push_back(&bench_case);
  }
  if (selected.empty()) {
    throw std::runtime_error(fmt::format(
        "--filter {}: no case has that text in its name; --list names them all", filter));
  }
  return selected;
}

void register_case(const BenchCase& bench_case, const std::vector<int>& thread_counts,
                   CallCache& cache) {
  for (const int threads : thread_counts) {
    for (const auto& [name, call] :
         {std::pair("attention", &BenchCalls::attention), std::pair("torch", &BenchCalls::torch)}) {
      benchmark::RegisterBenchmark(
          fmt::format("{}/{}/threads:{}", bench_case.name, name, threads).c_str(),
          [&bench_case, threads, call = call, &cache](benchmark::State& state) {
            measure(state, bench_case, threads, call, cache);
          })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    }
  }
}

/// Hands Google Benchmark our options as its own, and those that are its own.
void initialize(const BenchOptions& options) {
  // It keeps a pointer to the first.
  static std::vector<std::string> words;
  words = {"self-attention", fmt::format("--benchmark_min_time={}", options.seconds),
           fmt::format("--benchmark_repetitions={}", options.repetitions)};
  words.insert(words.end(), options.others.begin(), options.others.end());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (count > 1) {
    throw std::runtime_error(
        fmt::format("{}: no such option; see self-attention bench --help", arguments[1]));
  }
}

}  // namespace

CLI::App* add_bench_command(CLI::App& app, BenchOptions& options) {
  CLI::App* command = app.add_subcommand(
      "bench", "Measures the attention op and torch's scaled_dot_product_attention on the CPU");
  command->add_option("--threads", options.threads, "Thread counts to measure with")
      ->check(CLI::Range(1, kMostThreads))
      ->capture_default_str();
  command->add_option("--target", options.target,
                      "The op's instruction set: avx512, avx2, sse4 or scalar");
  command->add_option("--filter", options.filter,
                      "Measure only the cases with this text in their name");
  command->add_option("--seconds", options.seconds, "Time of each measurement")
      ->check(CLI::Range(kLeastSeconds, kMostSeconds))
      ->capture_default_str();
  command->add_option("--repetitions", options.repetitions, "Measurements of each case")
      ->check(CLI::Range(1, kMostRepetitions))
      ->capture_default_str();
  command->add_option("--json", options.json, "Write the results to this file");
  command->add_flag("--list", options.list, "Print the cases' names and stop");
  command->allow_extras();
  command->footer(
      "Options that start with --benchmark_ go to Google Benchmark.\n"
      "Exit code: 0, or 2 where an option could not be served.\n");
  command->final_callback([command, &options] { options.others = command->remaining(); });
  return command;
}

int run_bench(const BenchOptions& options) {
  initialize(options);
  const std::vector<const BenchCase*> cases = select_cases(options.filter);
  if (options.list) {
    for (const BenchCase* bench_case : cases) fmt::print("{}\n", bench_case->name);
    return 0;
  }
  if (!options.target.empty()) use_target(options.target);
  std::optional<io::OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  benchmark::AddCustomContext("torch", torch_description());
  CallCache cache;
  for (const BenchCase* bench_case : cases) register_case(*bench_case, options.threads, cache);
  TwoReporters reporters;
  benchmark::RunSpecifiedBenchmarks(&reporters);
  benchmark::Shutdown();
  if (json) {
    json->write(reporters.json());
    json->commit();
  }
  return 0;
}

}  // namespace self_attention::bench
