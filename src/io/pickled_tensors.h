#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "io/input_file.h"
#include "io/pickle.h"
#include "io/tensor_index.h"

namespace self_attention::io {

/// A parsed pickle together with the storages it refers to.
struct PickledFile {
  const InputFile& file;
  const Pickle& pickle;
  /// The storage of that key; nothing if the file has none.
  std::function<std::optional<TensorStorage>(std::string_view key)> find_storage;
};

/// Adds the tensors of a state dict to `index`: of the one that read_tensor_index describes.
void add_state_dict(const PickledFile& source, const std::string& key, TensorIndex& index);

/// Adds the tensor attributes of a TorchScript module and its submodules to `index`.
void add_module(const PickledFile& source, TensorIndex& index);

}  // namespace self_attention::io
