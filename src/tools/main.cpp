#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>

#include "tools/bench/bench_command.h"
#include "tools/export/export_command.h"
#include "tools/inspect/inspect_command.h"
#include "tools/parity/parity_command.h"

namespace {

/// The command line or what it names cannot be used.
constexpr int kUnusableInput = 2;

int run(int argc, char** argv) {
  CLI::App app("Multi-head self-attention for LibTorch: tools beside the library",
               "self-attention");
  app.require_subcommand(1);
  self_attention::parity::ParityOptions parity;
  CLI::App* parity_command = self_attention::parity::add_parity_command(app, parity);
  self_attention::exporting::ExportRequest request;
  CLI::App* export_command = self_attention::exporting::add_export_command(app, request);
  self_attention::bench::BenchOptions bench;
  CLI::App* bench_command = self_attention::bench::add_bench_command(app, bench);
  self_attention::inspect::InspectOptions inspect;
  self_attention::inspect::add_inspect_command(app, inspect);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUnusableInput;
  }
  if (parity_command->parsed()) return self_attention::parity::run_parity(parity);
  if (bench_command->parsed()) return self_attention::bench::run_bench(bench);
  fmt::print("{}", export_command->parsed() ? self_attention::exporting::run_export(request)
                                            : self_attention::inspect::describe_file(inspect));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    // What did not fit on a full disk is known only then.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw std::system_error(errno, std::generic_category(), "standard output cannot be written");
    }
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "self-attention: %s\n", error.what());
    return kUnusableInput;
  }
}
