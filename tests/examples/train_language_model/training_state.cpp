#include "training_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <self_attention/io/checkpoint.h>
#include <torch/utils.h>

#include <memory>
#include <utility>

namespace language_model {
namespace {

using self_attention::load_state_dict;
using self_attention::LoadStateDictOptions;

constexpr const char* kModelPrefix = "model.";
constexpr double kGradientMemory = 0.9;
constexpr double kSquareMemory = 0.99;

LanguageModel make_model(const Options& options, const Text& text, torch::Device device) {
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  LanguageModel model(options, text.vocabulary_size());
  model->to(device, options.dtype == "float64" ? torch::kFloat64 : torch::kFloat32);
  return model;
}

torch::optim::AdamWOptions optimizer_options(const Options& options) {
  return torch::optim::AdamWOptions(options.learning_rate)
      .betas({kGradientMemory, kSquareMemory})
      .weight_decay(options.weight_decay);
}

}  // namespace

TrainingState::TrainingState(const Options& options, const Text& text, torch::Device device)
    : model_(make_model(options, text, device)),
      parameters_(model_->parameters()),
      optimizer_(parameters_, optimizer_options(options)),
      generator_(at::detail::createCPUGenerator(static_cast<std::uint64_t>(options.seed))) {
  auto averages = std::make_shared<torch::nn::Module>();
  auto squares = std::make_shared<torch::nn::Module>();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->exp_avg(averages->register_buffer(std::to_string(i), torch::zeros_like(parameters_[i])));
    state->exp_avg_sq(
        squares->register_buffer(std::to_string(i), torch::zeros_like(parameters_[i])));
    optimizer_.state()[parameters_[i].unsafeGetTensorImpl()] = std::move(state);
  }
  auto optimizer = std::make_shared<torch::nn::Module>();
  optimizer->register_module("exp_avg", std::move(averages));
  optimizer->register_module("exp_avg_sq", std::move(squares));
  auto training = std::make_shared<torch::nn::Module>();
  packed_step_ = training->register_buffer("step", torch::zeros({}, torch::kInt64));
  packed_seconds_ = training->register_buffer("seconds", torch::zeros({}, torch::kFloat64));
  packed_generator_ = training->register_buffer("generator", generator_.get_state().clone());
  packed_text_ = training->register_buffer("text", torch::tensor(text.checksum()));
  whole_.register_module("model", model_);
  whole_.register_module("optimizer", std::move(optimizer));
  whole_.register_module("training", std::move(training));
}

void TrainingState::advance(double seconds) {
  ++step_;
  seconds_ += seconds;
}

void TrainingState::load_weights(const std::string& file) {
  const auto prefixed = LoadStateDictOptions().strip_prefix(kModelPrefix);
  const bool checkpoint =
      load_state_dict(*model_, file, LoadStateDictOptions(prefixed).strict(false)).missing.empty();
  load_state_dict(*model_, file, checkpoint ? prefixed : LoadStateDictOptions());
}

void TrainingState::load(const std::string& file) {
  const torch::Tensor text = packed_text_.clone();
  torch::nn::Module found;
  const torch::Tensor found_text = found.register_buffer("text", torch::zeros_like(text));
  load_state_dict(found, file, LoadStateDictOptions().strict(false).strip_prefix("training."));
  TORCH_CHECK_VALUE(torch::equal(found_text, text), "--resume: expected a checkpoint of --text, ",
                    "got one of another text, ", file);
  load_state_dict(whole_, file);
  unpack();
}

void TrainingState::save(const std::string& file) {
  pack();
  self_attention::save_state_dict(whole_, file);
}

void TrainingState::share(Ranks& ranks) {
  torch::NoGradGuard no_grad;
  pack();
  for (const torch::Tensor& parameter : whole_.parameters()) ranks.broadcast(parameter);
  for (const torch::Tensor& buffer : whole_.buffers()) ranks.broadcast(buffer);
  unpack();
}

void TrainingState::pack() {
  packed_step_.fill_(step_);
  packed_seconds_.fill_(seconds_);
  packed_generator_.copy_(generator_.get_state());
}

void TrainingState::unpack() {
  step_ = packed_step_.item<std::int64_t>();
  seconds_ = packed_seconds_.item<double>();
  generator_.set_state(packed_generator_);
  for (const torch::Tensor& parameter : parameters_) {
    auto& state = *optimizer_.state().at(parameter.unsafeGetTensorImpl());
    static_cast<torch::optim::AdamWParamState&>(state).step(step_);
  }
}

}  // namespace language_model
