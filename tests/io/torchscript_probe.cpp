// Runs many exports in one process, for tests in Python: each line of standard input holds the
// arguments of one `self-attention export`, separated by tabs. Prints a line for each: "ok" or the
// error.
// With --operators prints the operators that an archive may use instead.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "io/torchscript_source.h"
#include "tools/export/export_command.h"

namespace {

std::string run(const std::string& line) {
  std::vector<std::string> arguments = {"export"};
  std::istringstream stream(line);
  for (std::string word; std::getline(stream, word, '\t');) arguments.push_back(word);
  std::ranges::reverse(arguments);  // as CLI11 takes them
  CLI::App app("export probe");
  self_attention::exporting::ExportRequest request;
  self_attention::exporting::add_export_command(app, request);
  try {
    app.parse(arguments);
    self_attention::exporting::run_export(request);
    return "ok";
  } catch (const std::exception& error) {
    std::string text = error.what();
    std::ranges::replace(text, '\n', ' ');
    return text;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--operators") {
    for (const auto& schema : self_attention::io::portable_operators()) std::cout << schema << "\n";
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) std::cout << run(line) << "\n";
}
