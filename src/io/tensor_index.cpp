#include "io/tensor_index.h"

#include <utility>

#include "io/checked.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "io/torch_legacy.h"
#include "io/torch_zip.h"
#include "io/verified_read.h"

namespace self_attention::io {
namespace {

TensorIndex read_safetensors(const InputFile& file, const std::string& key) {
  if (!key.empty()) {
    throw FormatError(
        formatted("{}: expected no key for safetensors, which has no nested dicts, got {}",
                  file.path(), in_quotes(key)));
  }
  SafetensorsHeader header = read_safetensors_header(file, UnsupportedTypes::kList);
  TensorIndex index;
  index.metadata = std::move(header.metadata);
  for (SafetensorsEntry& entry : header.entries) {
    std::vector<std::int64_t> strides = contiguous_strides(entry.shape);
    index.storages.push_back({entry.name, entry.offset, entry.bytes, std::nullopt});
    index.tensors.push_back({std::move(entry.name), entry.type, std::move(entry.shape),
                             std::move(strides), 0, index.storages.size() - 1});
  }
  for (SafetensorsUnsupported& entry : header.unsupported) {
    index.others.push_back({std::move(entry.name), "a tensor of dtype " + in_quotes(entry.dtype) +
                                                       ", which is not supported"});
  }
  return index;
}

}  // namespace

TensorIndex read_tensor_index(const InputFile& file, const std::string& key) {
  switch (detect_container(file)) {
    case FileContainer::kSafetensors:
      return read_safetensors(file, key);
    case FileContainer::kTorchLegacy:
      return read_torch_legacy(file, key);
    default:
      return read_torch_zip(file, key);
  }
}

void read_storage(const InputFile& file, const TensorStorage& storage,
                  std::span<std::byte> destination) {
  read_verified(file, {storage.label, storage.offset, storage.crc32}, destination);
}

}  // namespace self_attention::io
