#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "io/element_type.h"
#include "io/pickle.h"

namespace self_attention::io {

/// A tensor as a pickle describes it, nothing compared with the file yet.
struct PickledTensor {
  ElementType type = ElementType::kBool;
  std::string_view storage_key;
  std::uint64_t storage_bytes = 0;
  std::uint64_t storage_offset = 0;  ///< in elements, like the strides
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

/// The storage that a persistent id names: ("storage", class, key, location, numel).
struct PickledStorage {
  std::string_view key;
  std::uint64_t bytes = 0;
  /// Its elements' type; an untyped storage counts bytes and leaves the type to the tensor.
  ElementType type = ElementType::kUInt8;
  bool untyped = false;
};

/// A value of a kind that is not supported here, in words such as "a list". Only what somebody asks
/// for is an error, so whoever walks a file catches this.
class UnsupportedValue : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A tensor that PyTorch cannot have written. The message does not know file and name.
class DamagedTensor : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "FloatStorage", ...
std::string_view storage_class_name(ElementType type);

/// Whether the value claims to be a tensor, usable or not.
bool is_tensor(const Pickle& pickle, PickleId id);

/// Throws UnsupportedValue for anything but a dense tensor of an ElementType, and DamagedTensor.
PickledTensor read_tensor(const Pickle& pickle, PickleId id);

/// Throws UnsupportedValue and DamagedTensor.
PickledStorage read_storage_reference(const Pickle& pickle, PickleId id);

}  // namespace self_attention::io
