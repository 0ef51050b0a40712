// A host for exported archives: one module, called by many threads, fed by a queue that refuses
// what it cannot hold.
//   serve load ARCHIVE     how many requests a second, how fast, in how much memory
//   serve answer ARCHIVE REQUESTS ANSWERS

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "answer_command.h"
#include "load_command.h"

int main(int argc, char** argv) {
  CLI::App app("Serves an archive of `self-attention export` to threads of this program");
  app.require_subcommand(1);
  serve::LoadCommand load;
  serve::AnswerCommand answer;
  CLI::App* load_command = serve::add_load_command(app, load);
  serve::add_answer_command(app, answer);
  app.footer("Exit code: 0, 1 where a request failed, 2 where the input could not be used.");
  try {
    app.parse(argc, argv);
    return load_command->parsed() ? serve::run_load(load) : serve::run_answer(answer);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << serve::short_message(error) << "\n";
    return 2;
  }
}
