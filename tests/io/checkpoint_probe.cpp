// What tests in Python have done in C++:
//   checkpoint_probe copy IN OUT KEY NAME:DTYPE:SIZES...
//       reads a state dict into a module of buffers and writes it again; SIZES are 2x3, or nothing
//       for a scalar
//   checkpoint_probe forward VARIANT EMBED HEADS WEIGHTS PREFIX IN OUT NAME:DTYPE:SIZES...
//       runs a module with weights from one file on the inputs of another, by name, and writes
//       `output`; VARIANT may be multihead_attention for a layer of torch.nn

#include <self_attention/io/checkpoint.h>
#include <self_attention/self_attention.h>
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

using Arguments = std::vector<std::string>;

void add_buffers(torch::nn::Module& module, const Arguments& arguments, std::size_t from) {
  for (std::size_t i = from; i < arguments.size(); ++i) add_buffer(module, arguments[i]);
}

void copy(const Arguments& arguments) {
  torch::nn::Module module("probe");
  add_buffers(module, arguments, 4);
  self_attention::load_state_dict(module, arguments.at(1),
                                  self_attention::LoadStateDictOptions().key(arguments.at(3)));
  self_attention::save_state_dict(module, arguments.at(2));
}

template <typename Holder>
torch::Tensor run(const Arguments& arguments, const torch::nn::Module& inputs,
                  const self_attention::LoadStateDictOptions& options) {
  using Options = decltype(std::declval<Holder>()->options);
  Holder module(Options(std::stoll(arguments.at(2)), std::stoll(arguments.at(3)))
                    .backend(self_attention::Backend::Eager));
  const auto tensors = inputs.named_buffers();
  module->to(tensors["query"].scalar_type());
  self_attention::load_state_dict(*module, arguments.at(4), options);
  const torch::Tensor mask = tensors.contains("mask") ? tensors["mask"] : torch::Tensor();
  return module->forward(tensors["values"], tensors["keys"], tensors["query"], mask);
}

void forward(const Arguments& arguments) {
  const std::string& variant = arguments.at(1);
  const std::string& prefix = arguments.at(5);
  torch::nn::Module inputs("inputs");
  add_buffers(inputs, arguments, 8);
  self_attention::load_state_dict(inputs, arguments.at(6));
  const torch::NoGradGuard no_grad;
  const auto options = self_attention::LoadStateDictOptions().strip_prefix(prefix);
  torch::nn::Module result("result");
  torch::Tensor output;
  if (variant == "shared_projection") {
    output = run<self_attention::SharedProjectionAttention>(arguments, inputs, options);
  } else if (variant == "full_projection") {
    output = run<self_attention::FullProjectionAttention>(arguments, inputs, options);
  } else if (variant == "inferred_length") {
    output = run<self_attention::InferredLengthAttention>(arguments, inputs, options);
  } else {
    output = run<self_attention::FullProjectionAttention>(
        arguments, inputs, self_attention::multihead_attention_options(prefix));
  }
  result.register_buffer("output", output);
  self_attention::save_state_dict(result, arguments.at(7));
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argv + 1, argv + argc);
  try {
    arguments.at(0) == "copy" ? copy(arguments) : forward(arguments);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
