// A program that knows LibTorch alone: loads an archive, runs it and compares.
//   archive_runner ARCHIVE TENSORS
// TENSORS is a TorchScript archive of a module with the buffers input_0, input_1, ... and output.
// Exits 0 where forward of the inputs gives the output to the bit.

#include <torch/script.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    torch::jit::Module module = torch::jit::load(argv[1]);
    const torch::jit::Module tensors = torch::jit::load(argv[2]);
    std::vector<torch::jit::IValue> inputs;
    for (std::string name = "input_0"; tensors.hasattr(name);
         name = "input_" + std::to_string(inputs.size())) {
      inputs.push_back(tensors.attr(name));
    }
    const torch::Tensor expected = tensors.attr("output").toTensor();
    for (int call = 0; call < 3; ++call) {
      const torch::Tensor output = module.forward(inputs).toTensor();
      if (!torch::equal(output, expected)) {
        std::cerr << "call " << call << " differs by "
                  << (output - expected).abs().max().item<double>() << "\n";
        return 1;
      }
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
