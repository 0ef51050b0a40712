#include "answer_command.h"

#include <torch/serialize.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "module.h"

namespace serve {
namespace {

/// A list of lists of tensors, as torch.save of Python writes it. Runs no code of the file.
std::vector<Arguments> read_requests(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("[serve] requests: expected a file that can be read, got " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  try {
    std::vector<Arguments> requests;
    const torch::IValue read = torch::pickle_load(bytes);
    for (const torch::IValue& request : read.toList().vec()) {
      Arguments& arguments = requests.emplace_back();
      for (const torch::IValue& tensor : request.toList().vec()) {
        arguments.push_back(tensor.toTensor());
      }
    }
    return requests;
  } catch (const std::exception& error) {
    throw Error("[serve] requests: expected a list of lists of tensors, got " + path + ": " +
                short_message(error));
  }
}

/// The file appears whole or not at all.
void write_answers(const std::string& path, const c10::List<torch::Tensor>& answers) {
  const std::vector<char> bytes = torch::pickle_save(answers);
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(unfinished, path, error);
  if (file && !error) return;
  std::filesystem::remove(unfinished, error);
  throw Error("[serve] answers: expected a file that can be written, got " + path);
}

void replace_weights(const Model& model, const AnswerCommand& command) {
  if (!model.set_weights) {
    throw Error("[serve] --weights: expected a model that is not frozen, got " + command.model);
  }
  model.set_weights(read_weights(model.info, command.weights));
}

}  // namespace

CLI::App* add_answer_command(CLI::App& app, AnswerCommand& command) {
  CLI::App* answer = app.add_subcommand("answer", "Answers the requests in a file, side by side");
  answer->add_option("model", command.model, kModelHelp)->required();
  answer->add_option("requests", command.requests, "torch.save of a list of lists of tensors")
      ->required();
  answer->add_option("answers", command.answers, "The file to write: a list of tensors")
      ->required();
  answer->add_option("--weights", command.weights, "A state dict to use in place of the model's");
  answer->add_option("--threads", command.server.threads, "Threads that compute")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  return answer;
}

int run_answer(const AnswerCommand& command) {
  std::vector<Arguments> requests = read_requests(command.requests);
  ServerOptions options = command.server;
  options.queue = std::max<std::size_t>(requests.size(), 1);
  Model model = load_model(command.model, options.threads);
  if (!command.weights.empty()) replace_weights(model, command);
  ModelServer server(std::move(model), options);
  std::vector<std::future<torch::Tensor>> waiting;
  waiting.reserve(requests.size());
  for (Arguments& arguments : requests) waiting.push_back(server.submit(std::move(arguments)));
  c10::List<torch::Tensor> answers;
  int failed = 0;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    try {
      answers.push_back(waiting[i].get());
    } catch (const std::exception& error) {
      answers.push_back(torch::empty({0}));
      failed = 1;
      std::cout << "request " << i << ": " << short_message(error) << "\n";
    }
  }
  write_answers(command.answers, answers);
  return failed;
}

}  // namespace serve
