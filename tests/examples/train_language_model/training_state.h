#pragma once

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"
#include "options.h"
#include "ranks.h"
#include "text.h"

namespace language_model {

/// All that a run continues from: weights, the optimizer's averages, the generator that draws
/// batches, and how far it came. It is one module, so one file holds it, whole or not at all:
///
///     model.*                       the weights, by their names in the model
///     optimizer.exp_avg.N, optimizer.exp_avg_sq.N    of the N-th parameter
///     training.step, training.seconds, training.generator, training.text
class TrainingState {
 public:
  /// Draws new weights from the seed.
  TrainingState(const Options& options, const Text& text, torch::Device device);

  LanguageModel& model() { return model_; }
  torch::optim::AdamW& optimizer() { return optimizer_; }
  /// Draws on the CPU, the same in each process.
  at::Generator& generator() { return generator_; }
  std::int64_t step() const { return step_; }
  double seconds() const { return seconds_; }
  /// Counts a step that took so long.
  void advance(double seconds);

  /// Takes weights alone, from a state dict of the model or from a checkpoint.
  void load_weights(const std::string& file);
  /// Throws c10::ValueError for a checkpoint of another text or another model.
  void load(const std::string& file);
  /// A crash or a full disk at any moment leaves an older file whole.
  void save(const std::string& file);
  /// Makes all ranks continue from what rank 0 has.
  void share(Ranks& ranks);

 private:
  void pack();
  void unpack();

  LanguageModel model_;
  std::vector<torch::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
  at::Generator generator_;
  std::int64_t step_ = 0;
  double seconds_ = 0;
  torch::nn::Module whole_;
  torch::Tensor packed_step_, packed_seconds_, packed_generator_, packed_text_;
};

}  // namespace language_model
