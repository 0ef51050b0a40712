#include "train_command.h"

#include <self_attention/io/checkpoint.h>
#include <torch/optim/adam.h>

#include <iostream>

#include "module.h"

namespace serve {

CLI::App* add_train_command(CLI::App& app, TrainCommand& command) {
  CLI::App* train = app.add_subcommand(
      "train", "Trains new weights for a model, to copy reversed rows, and saves them");
  train->add_option("model", command.model, "The archive or package that will take them")
      ->required();
  train->add_option("weights", command.weights, "The file to write, .safetensors or .pt")
      ->required();
  train->add_option("--steps", command.steps, "Steps")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return train;
}

int run_train(const TrainCommand& command) {
  const ModelInfo info = load_model(command.model, 1).info;
  torch::manual_seed(0);
  const LibraryModule module = make_module(info);
  torch::optim::Adam optimizer(module.module->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < command.steps; ++step) {
    constexpr std::int64_t kRows = 8;
    constexpr std::int64_t kLength = 16;
    const torch::Tensor x = torch::randn({kRows, kLength, info.embed}).to(info.dtype);
    Arguments arguments(info.takes_single ? 1 : 3, x);
    if (info.takes_mask) arguments.push_back(torch::ones({kRows, 1, 1, kLength}, torch::kBool));
    const torch::Tensor loss = torch::mse_loss(module.forward(arguments), x.flip(1));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step == 0 || step == command.steps - 1) {
      std::cout << "loss: " << loss.item<double>() << "\n";
    }
  }
  self_attention::save_state_dict(*module.module, command.weights);
  return 0;
}

}  // namespace serve
