#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/pickled_tensors.h"
#include "io/tensor_index.h"
#include "io/torch_tensor.h"

namespace self_attention::io {

/// Fills a TensorIndex from a pickle: verifies each tensor against its storage, each storage once,
/// and keeps the index within the memory that the file justifies.
class TensorCollector {
 public:
  TensorCollector(const PickledFile& source, TensorIndex& index);

  /// Adds the value as a tensor, or to `others` where it is none that is supported. Throws
  /// FormatError for a damaged tensor.
  void add(std::string name, PickleId value);
  void add_other(std::string name, std::string content);

  /// Throws FormatError once the walk that adds has cost more than the file justifies.
  void charge(std::uint64_t bytes);

  /// Throws FormatError if two entries have one name. To be called at the end.
  void refuse_duplicates() const;

 private:
  TensorEntry entry(const PickledTensor& tensor);
  std::size_t storage_index(const PickledTensor& tensor);

  const PickledFile& source_;
  TensorIndex& index_;
  std::map<std::string_view, std::size_t> storages_;
  std::uint64_t allowance_;
};

}  // namespace self_attention::io
