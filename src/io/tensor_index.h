#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/element_type.h"
#include "io/file_format.h"
#include "io/input_file.h"

namespace self_attention::io {

/// Contiguous bytes of the file that one or more tensors view.
struct TensorStorage {
  std::string label;  ///< for messages: "data/3", or the tensor's name in safetensors
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< where the format has checksums
};

/// A strided view of a storage, proved to lie within it.
///
/// A stride of 0 lets a shape be larger than its storage, and than the file: compare a shape with
/// what is wanted before anything of its size is allocated.
struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kBool;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  std::uint64_t storage_offset = 0;   ///< in elements
  std::size_t storage = 0;            ///< index into TensorIndex::storages
};

/// A name with something that is no tensor, or none that is supported.
struct OtherEntry {
  std::string name;
  std::string content;  ///< "an int", "an object of class numpy.ndarray", ...
};

/// What a tensor file holds, without the tensors' bytes.
struct TensorIndex {
  FileFormat format = FileFormat::kSafetensors;
  std::map<std::string, std::string> metadata;  ///< of safetensors, of our archives
  /// The nested dict that the entries are from ("model"); empty for the file's top level.
  std::string key;
  std::vector<TensorStorage> storages;
  std::vector<TensorEntry> tensors;  ///< in the file's order; names are unique
  /// Values of the same dict that cannot be used: an error only for who wants one of these names.
  std::vector<OtherEntry> others;
  /// What else the top level holds when the entries are from a nested dict; at most 100.
  std::vector<OtherEntry> top_level;
};

/// Reads the index of any supported file. Nothing in the file is executed, memory stays within
/// 64 MiB + a small multiple of the file's size, and sizes are compared with the file.
///
/// In a checkpoint, `key` names the dict that holds the state dict ("model", or "a.b" for nested
/// ones). Without it, that is the one dict of tensors called "state_dict", "model_state_dict" or
/// "model", or else the top level. TorchScript modules give their tensor attributes by dotted path.
///
/// Throws FormatError for files that are malformed, of another format, or have no such dict.
TensorIndex read_tensor_index(const InputFile& file, const std::string& key = {});

/// Reads a whole storage into `destination`, which has its size, and verifies its checksum.
/// Throws FormatError. Safe to call from many threads.
void read_storage(const InputFile& file, const TensorStorage& storage,
                  std::span<std::byte> destination);

}  // namespace self_attention::io
