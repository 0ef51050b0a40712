#pragma once

#include <torch/types.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace self_attention {

/// A tensor argument and the name it has in messages.
struct NamedTensor {
  std::string_view name;
  const torch::Tensor& tensor;
};
using NamedTensors = std::initializer_list<NamedTensor>;

/// A parameter and the shape it must have.
struct ExpectedParameter {
  std::string_view name;
  const torch::Tensor& tensor;
  c10::SmallVector<int64_t, 2> shape;
};

/// The sizes of the scores.
struct ScoreShape {
  int64_t batch;
  int64_t heads;
  int64_t query_length;
  int64_t key_length;
};

/// "(2, 7)", "(7,)", "()".
std::string shape_text(torch::IntArrayRef shape);

/// "[who] argument: expected `expected`, got `got`", the form of every message.
std::string message(std::string_view who, std::string_view argument, std::string_view expected,
                    std::string_view got);

/// "float32", as Python users write it.
std::string dtype_text(torch::ScalarType type);

/// Throws unless the argument is a defined, dense tensor.
void check_dense(std::string_view who, const NamedTensor& argument);

/// The length of a bias, which tells E. Throws unless it is a dense tensor of rank 1.
int64_t check_bias(std::string_view who, const NamedTensor& bias);

/// Throws unless the parameters are dense tensors of those shapes on one device and of one and the
/// same of the four floating dtypes; under autocast these mix as inputs do.
void check_parameters(std::string_view who, std::initializer_list<ExpectedParameter> parameters);

/// Throws unless the inputs are dense floating tensors on the device of `like` ("the parameters")
/// and, outside autocast, of its dtype. Under autocast floating dtypes mix, except for float64,
/// which autocast leaves alone.
void check_inputs(std::string_view who, NamedTensors inputs, const NamedTensor& like);

/// Throws unless values and keys, the first two, are (N, K, E) and query, the third, is (N, Q, E).
void check_sequence_shapes(std::string_view who, NamedTensors values_keys_query,
                           int64_t embed_size);

/// Throws unless values and keys have the same number of positions. A length of one is no
/// exception: broadcasting a single value over the keys is a mistake more often than a wish.
void check_key_lengths(std::string_view who, const torch::Tensor& values, int64_t value_length,
                       int64_t key_length);

/// Throws unless `mask` is undefined or broadcasts to the scores without enlarging them.
void check_mask(std::string_view who, const torch::Tensor& mask, const ScoreShape& scores,
                torch::Device device);

/// Throws when gradients would be recorded although a parameter is an inference tensor: autograd
/// would leave that parameter out without a word and train the rest.
void check_recordable(std::string_view who, std::initializer_list<ExpectedParameter> parameters,
                      NamedTensors inputs);

}  // namespace self_attention
