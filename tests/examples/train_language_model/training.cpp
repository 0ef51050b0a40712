#include "training.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>

#include "batches.h"
#include "interrupt.h"
#include "loss_log.h"
#include "progress.h"
#include "ranks.h"
#include "sample.h"
#include "schedule.h"
#include "training_state.h"

namespace language_model {
namespace {

namespace F = torch::nn::functional;

constexpr std::int64_t kSeedLimit = std::int64_t{1} << 31;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Autocast to bfloat16 while it lives, where that is asked for.
class Autocast {
 public:
  Autocast(bool enabled, torch::DeviceType device) : enabled_(enabled), device_(device) {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, torch::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!enabled_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool enabled_;
  torch::DeviceType device_;
};

/// What the ranks agree on after each step.
struct Outcome {
  double loss;
  bool stop;
};

class Training {
 public:
  Training(const Options& options, Ranks& ranks, torch::Device device)
      : options_(options),
        ranks_(ranks),
        device_(device),
        text_(options.text, options.context),
        state_(options, text_, device) {
    if (!options.prompt.empty()) text_.encode(options.prompt);
  }

  int run();

 private:
  bool leads() const { return ranks_.rank() == 0; }
  void begin();
  Outcome step();
  double validate();
  void save();
  std::vector<std::int64_t> draw_starts();
  torch::Tensor loss_of(std::span<const std::int64_t> starts);
  void finish(bool stopped);

  const Options& options_;
  Ranks& ranks_;
  torch::Device device_;
  Text text_;
  TrainingState state_;
  std::optional<LossLog> log_;
  std::optional<Progress> progress_;
};

/// Takes up the checkpoint or the weights that were asked for.
void Training::begin() {
  if (leads()) {
    const std::string file = options_.checkpoint_file();
    const bool exists = std::filesystem::exists(file);
    if (exists && !options_.resume) {
      throw std::runtime_error(fmt::format(
          "--out: expected a folder without a checkpoint, or --resume, found {}", file));
    }
    std::filesystem::create_directories(options_.out);
    if (!options_.init.empty()) state_.load_weights(options_.init);
    if (exists) state_.load(file);
    log_.emplace(options_.csv_file(), state_.step());
    progress_.emplace(state_.step(), options_.steps, options_.log_every);
    const std::string from =
        exists ? fmt::format(", from step {} of {}", state_.step(), file) : std::string();
    std::int64_t weights = 0;
    for (const torch::Tensor& parameter : state_.model()->parameters()) {
      weights += parameter.numel();
    }
    fmt::print("{} weights, {} processes with {} threads{}\n", weights, ranks_.size(),
               torch::get_num_threads(), from);
    std::fflush(stdout);
  }
  state_.share(ranks_);
  if (ranks_.size() > 1) ranks_.average_gradients(state_.model()->parameters());
}

torch::Tensor Training::loss_of(std::span<const std::int64_t> starts) {
  const Batch batch = make_batch(text_, starts, options_.context, device_);
  const Autocast autocast(options_.bf16, device_.type());
  const torch::Tensor scores = state_.model()(batch.inputs);
  return F::cross_entropy(scores.flatten(0, 1), batch.targets.flatten());
}

std::vector<std::int64_t> Training::draw_starts() {
  const torch::Tensor windows =
      torch::randint(text_.training_windows(), {options_.batch}, state_.generator(),
                     torch::TensorOptions(torch::kInt64));
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < options_.batch; ++i) {
    starts.push_back(text_.training_start(windows[i].item<std::int64_t>()));
  }
  return starts;
}

Outcome Training::step() {
  const std::vector<std::int64_t> starts = draw_starts();
  // Each rank draws the same here, and leaves out activations of its own.
  const auto seed = torch::randint(kSeedLimit, {1}, state_.generator()).item<std::int64_t>();
  torch::manual_seed(static_cast<std::uint64_t>(seed + ranks_.rank()));
  const double rate = learning_rate(options_, state_.step());
  for (auto& group : state_.optimizer().param_groups()) group.options().set_lr(rate);
  // Not zero_grad, which would detach gradients that are views of what the ranks exchange.
  for (const torch::Tensor& parameter : state_.model()->parameters()) {
    parameter.mutable_grad().reset();
  }

  const torch::Tensor loss = loss_of(part_of(starts, ranks_.rank(), ranks_.size()));
  ranks_.before_backward();
  loss.backward();
  torch::nn::utils::clip_grad_norm_(state_.model()->parameters(), options_.clip);
  state_.optimizer().step();

  const torch::Tensor sums =
      torch::tensor({loss.item<double>(), interrupted() ? 1.0 : 0.0}, torch::kFloat64);
  ranks_.sum(sums);
  const double mean = sums[0].item<double>() / ranks_.size();
  if (!std::isfinite(mean)) {
    throw std::runtime_error(fmt::format(
        "loss: expected a finite number at step {}, got {}; a lower --learning-rate may "
        "help, and the last checkpoint is as it was",
        state_.step() + 1, mean));
  }
  return {mean, sums[1].item<double>() > 0};
}

double Training::validate() {
  torch::NoGradGuard no_grad;
  const std::vector<std::int64_t>& all = text_.validation_starts();
  std::span<const std::int64_t> starts = part_of(all, ranks_.rank(), ranks_.size());
  state_.model()->eval();
  double total = 0;
  while (!starts.empty()) {
    const auto rows = std::min<std::size_t>(starts.size(), options_.batch);
    total += loss_of(starts.first(rows)).item<double>() * static_cast<double>(rows);
    starts = starts.subspan(rows);
  }
  state_.model()->train();
  const torch::Tensor sum = torch::tensor({total}, torch::kFloat64);
  ranks_.sum(sum);
  return sum.item<double>() / static_cast<double>(all.size());
}

void Training::save() {
  if (!leads()) return;
  log_->sync();
  state_.save(options_.checkpoint_file());
}

int Training::run() {
  begin();
  bool stop = false;
  while (state_.step() < options_.steps && !stop) {
    const double start = now();
    const Outcome outcome = step();
    const double seconds = now() - start;
    stop = outcome.stop;
    const std::int64_t number = state_.step() + 1;
    const bool last = number == options_.steps;
    std::optional<double> validation;
    if (last || number % options_.validate_every == 0) validation = validate();
    const double rate = learning_rate(options_, state_.step());
    state_.advance(now() - start);
    const double tokens = static_cast<double>(options_.batch * options_.context);
    const StepReport report = {number, outcome.loss,     validation,
                               rate,   tokens / seconds, state_.seconds()};
    if (leads()) {
      log_->write(report);
      progress_->show(report);
    }
    if (!last && !stop && number % options_.checkpoint_every == 0) save();
  }
  save();
  if (leads()) finish(stop);
  return stop ? kInterrupted : 0;
}

void Training::finish(bool stopped) {
  progress_->end_line();
  if (stopped) {
    fmt::print("stopped after step {}; --resume continues from {}\n", state_.step(),
               options_.checkpoint_file());
  } else {
    fmt::print("wrote {} and {}\n", options_.checkpoint_file(), options_.csv_file());
    if (options_.sample > 0) {
      fmt::print("\n{}\n", sample_text(state_.model(), text_, options_, device_));
    }
  }
  std::fflush(stdout);
}

torch::Device choose_device(const Options& options, const Launch& launch) {
  if (options.device == "cpu") return {torch::kCPU};
  const c10::DeviceIndex count = torch::cuda::device_count();
  if (launch.local_rank >= count) {
    throw std::runtime_error(
        fmt::format("--device cuda: expected a device for each process here, found {}", count));
  }
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(launch.local_rank)};
}

/// What went wrong, without LibTorch's list of calls.
std::string reason_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch == nullptr ? error.what() : from_torch->what_without_backtrace();
}

/// Says why and ends at once: destructors would wait for ranks that are gone.
[[noreturn]] void abandon(const Launch& launch, const std::string& reason) {
  std::fflush(stdout);
  fmt::print(stderr, "train_language_model: rank {} of {}: {}\n", launch.rank, launch.size, reason);
  std::fflush(stderr);
  std::_Exit(1);
}

}  // namespace

int train(const Options& options) {
  const Launch launch = read_launch();
  catch_interrupts();
  std::unique_ptr<Ranks> ranks;
  try {
    if (options.batch % launch.size != 0) {
      throw std::runtime_error(fmt::format("--batch: expected a multiple of {} processes, got {}",
                                           launch.size, options.batch));
    }
    if (options.threads > 0) torch::set_num_threads(options.threads);
    const torch::Device device = choose_device(options, launch);
    ranks = join_ranks(launch, options.timeout, device);
    return Training(options, *ranks, device).run();
  } catch (const std::exception& error) {
    if (launch.size > 1) abandon(launch, reason_of(error));
    throw std::runtime_error(reason_of(error));
  }
}

}  // namespace language_model
