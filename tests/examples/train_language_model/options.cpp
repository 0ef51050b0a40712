#include "options.h"

#include <CLI/CLI.hpp>
#include <limits>

#include "launch.h"

namespace language_model {
namespace {

constexpr int kUnusableInput = 2;
constexpr std::int64_t kMostSteps = 1'000'000'000;
constexpr std::int64_t kLargestSize = 1 << 20;

void add_model_options(CLI::App& app, Options& options) {
  const CLI::Range size(std::int64_t{1}, kLargestSize);
  app.add_option("--context", options.context, "Characters that the model looks back")->check(size);
  app.add_option("--embed", options.embed, "Size of an embedding")->check(size);
  app.add_option("--heads", options.heads, "Heads of attention, which divide --embed")->check(size);
  app.add_option("--layers", options.layers, "Blocks of attention and feed-forward")->check(size);
  app.add_option("--dropout", options.dropout, "Share of activations that are left out")
      ->check(CLI::Range(0.0, 0.99));
  app.add_option("--backend", options.backend, "Which implementation of attention runs")
      ->check(CLI::IsMember({"auto", "eager", "fused"}));
}

void add_training_options(CLI::App& app, Options& options) {
  app.add_option("--steps", options.steps, "Updates of the weights")
      ->check(CLI::Range(std::int64_t{0}, kMostSteps));
  app.add_option("--batch", options.batch, "Rows of a step, over all processes")
      ->check(CLI::Range(std::int64_t{1}, kLargestSize));
  app.add_option("--learning-rate", options.learning_rate, "The highest one")
      ->check(CLI::Range(0.0, 1e3));
  app.add_option("--warmup", options.warmup, "Steps until that is reached")
      ->check(CLI::Range(std::int64_t{0}, kMostSteps));
  app.add_option("--weight-decay", options.weight_decay, "AdamW's")->check(CLI::Range(0.0, 1e3));
  app.add_option("--clip", options.clip, "The largest norm of the gradients")
      ->check(CLI::Range(1e-9, 1e9));
  app.add_option("--seed", options.seed, "Of the weights, the batches, dropout and the sample")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
}

void add_machine_options(CLI::App& app, Options& options) {
  app.add_option("--dtype", options.dtype, "Of the weights")
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_flag("--bf16", options.bf16, "Compute in bfloat16 where autocast does");
  app.add_option("--device", options.device, "Where to train")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads", options.threads, "Threads of a process, 0 for LibTorch's choice")
      ->check(CLI::Range(0, 4096));
  app.add_option("--timeout", options.timeout, "Seconds to wait for another process")
      ->check(CLI::Range(1, 86400));
}

void add_output_options(CLI::App& app, Options& options) {
  const CLI::Range interval(std::int64_t{1}, kMostSteps);
  app.add_option("--out", options.out, "Folder for checkpoint.pt and loss.csv")
      ->check([](const std::string& folder) {
        return folder.empty() ? std::string("expected a folder, got none") : std::string();
      });
  app.add_flag("--resume", options.resume,
               "Continue from the checkpoint in --out, if there is one");
  app.add_option("--init", options.init,
                 "Weights to begin with: a state dict of the model, or a checkpoint");
  app.add_option("--validate-every", options.validate_every, "Steps between validations")
      ->check(interval);
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps between checkpoints")
      ->check(interval);
  app.add_option("--log-every", options.log_every,
                 "Steps between lines, where there is no terminal")
      ->check(interval);
  app.add_option("--sample", options.sample, "Characters to write with the trained model")
      ->check(CLI::Range(std::int64_t{0}, kLargestSize));
  app.add_option("--prompt", options.prompt, "What they continue; default: the text's first one");
  app.add_option("--temperature", options.temperature, "How far to stray from the likeliest")
      ->check(CLI::Range(0.01, 100.0));
}

}  // namespace

std::optional<int> parse_options(int argc, char** argv, Options& options) {
  CLI::App app("Trains a causal character model on a text file, with the library's attention",
               "train_language_model");
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--text", options.text, "The text, any file");
  add_output_options(app, options);
  add_model_options(app, options);
  add_training_options(app, options);
  add_machine_options(app, options);
  app.footer(std::string("Processes: ") + kProcesses);
  try {
    app.parse(argc, argv);
    if (options.embed % options.heads != 0) {
      throw CLI::ValidationError("--heads", "expected a divisor of --embed " +
                                                std::to_string(options.embed) + ", got " +
                                                std::to_string(options.heads));
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUnusableInput;
  }
  return std::nullopt;
}

}  // namespace language_model
