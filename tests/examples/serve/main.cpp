// A host for models: one of them, called by many threads, fed by a queue that refuses what it
// cannot hold.
//
//   serve load MODEL                       requests a second, latencies, memory
//   serve answer MODEL REQUESTS ANSWERS    with the model's weights or others
//   serve train MODEL WEIGHTS              weights for `answer --weights`

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "answer_command.h"
#include "load_command.h"
#include "train_command.h"

namespace {

/// Tensors come and go with each request, those of clients' threads among them: where their memory
/// goes back to the system each time, large requests take a tenth longer.
void keep_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

int run(int argc, char** argv) {
  CLI::App app("Serves a model to threads of this program");
  app.require_subcommand(1);
  app.footer("Exit code: 0, 1 where a request failed, 2 where the input could not be used.");
  serve::LoadCommand load;
  serve::AnswerCommand answer;
  serve::TrainCommand train;
  CLI::App* load_command = serve::add_load_command(app, load);
  CLI::App* answer_command = serve::add_answer_command(app, answer);
  serve::add_train_command(app, train);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (load_command->parsed()) return serve::run_load(load);
  return answer_command->parsed() ? serve::run_answer(answer) : serve::run_train(train);
}

}  // namespace

int main(int argc, char** argv) {
  keep_memory();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << serve::short_message(error) << "\n";
    return 2;
  }
}
