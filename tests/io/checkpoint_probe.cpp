// Reads a state dict into a module of buffers and writes it again, for tests in Python:
//   checkpoint_probe IN OUT KEY NAME:DTYPE:SIZES...      SIZES as 2x3, or nothing for a scalar

#include <self_attention/io/checkpoint.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <exception>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

const std::map<std::string, torch::ScalarType> kTypes = {
    {"bool", torch::kBool},       {"uint8", torch::kUInt8},       {"int8", torch::kInt8},
    {"int16", torch::kInt16},     {"int32", torch::kInt32},       {"int64", torch::kInt64},
    {"float16", torch::kFloat16}, {"bfloat16", torch::kBFloat16}, {"float32", torch::kFloat32},
    {"float64", torch::kFloat64}};

/// A module with one buffer, its name's dots being the nesting of children.
void add_buffer(torch::nn::Module& root, const std::string& description) {
  std::istringstream stream(description);
  std::string name, dtype, sizes, size;
  std::getline(stream, name, ':');
  std::getline(stream, dtype, ':');
  std::getline(stream, sizes);
  std::vector<int64_t> shape;
  std::istringstream list(sizes);
  while (std::getline(list, size, 'x')) shape.push_back(std::stoll(size));
  torch::nn::Module* module = &root;
  std::istringstream parts(name);
  std::string part, last;
  std::getline(parts, last, '.');
  while (std::getline(parts, part, '.')) {
    const auto children = module->named_children();
    module = children.contains(last)
                 ? children[last].get()
                 : module->register_module(last, std::make_shared<torch::nn::Module>(last)).get();
    last = part;
  }
  module->register_buffer(last, torch::zeros(shape, kTypes.at(dtype)));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    torch::nn::Module module("probe");
    for (std::size_t i = 3; i < arguments.size(); ++i) add_buffer(module, arguments[i]);
    self_attention::load_state_dict(module, arguments.at(0),
                                    self_attention::LoadStateDictOptions().key(arguments.at(2)));
    self_attention::save_state_dict(module, arguments.at(1));
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
