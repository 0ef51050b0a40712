// Loads an archive with ops of a library that it links and never names: loads_archive ARCHIVE

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    return torch::jit::load(argv[1]).parameters().size() == 5 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
