#include "io/tensor_collector.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "io/allowance.h"
#include "io/checked.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/text.h"

namespace self_attention::io {
namespace {

/// Throws DamagedTensor unless the view lies within the storage.
void check_extent(const PickledTensor& tensor, const TensorStorage& storage) {
  const std::size_t size = element_size(tensor.type);
  const auto bytes = tensor_bytes(tensor.shape, size);
  if (!bytes) {
    throw DamagedTensor(formatted("shape {} exceeds 64 bits", shape_text(tensor.shape)));
  }
  // One past the last element that the view reaches.
  std::optional<std::uint64_t> end = tensor.storage_offset;
  if (*bytes > 0) {
    end = checked_add(*end, 1);
    for (std::size_t i = 0; end && i < tensor.shape.size(); ++i) {
      const auto reach = checked_multiply(static_cast<std::uint64_t>(tensor.shape[i] - 1),
                                          static_cast<std::uint64_t>(tensor.strides[i]));
      end = reach ? checked_add(*end, *reach) : std::nullopt;
    }
  }
  if (!end || *end > storage.bytes / size) {
    throw DamagedTensor(
        formatted("{} {} with strides {} from element {} leaves {}, which has {} bytes",
                  element_name(tensor.type), shape_text(tensor.shape), shape_text(tensor.strides),
                  tensor.storage_offset, storage.label, storage.bytes));
  }
}

}  // namespace

TensorCollector::TensorCollector(const PickledFile& source, TensorIndex& index)
    : source_(source), index_(index), allowance_(memory_allowance(source.file)) {}

void TensorCollector::add(std::string name, PickleId value) {
  try {
    const PickledTensor tensor = read_tensor(source_.pickle, value);
    charge(2 * sizeof(TensorEntry) + name.size() + 2 * sizeof(std::int64_t) * tensor.shape.size());
    TensorEntry added = entry(tensor);
    added.name = std::move(name);
    index_.tensors.push_back(std::move(added));
  } catch (const UnsupportedValue& error) {
    add_other(std::move(name), error.what());
  } catch (const DamagedTensor& error) {
    throw FormatError(
        formatted("{}: tensor {}: {}", source_.file.path(), in_quotes(name), error.what()));
  }
}

void TensorCollector::add_other(std::string name, std::string content) {
  charge(sizeof(OtherEntry) + name.size() + content.size());
  index_.others.push_back({std::move(name), std::move(content)});
}

void TensorCollector::charge(std::uint64_t bytes) {
  if (bytes > allowance_) {
    throw FormatError(
        formatted("{}: its pickle describes more than a file of {} bytes justifies: it is not what "
                  "torch.save writes",
                  source_.file.path(), source_.file.size()));
  }
  allowance_ -= bytes;
}

void TensorCollector::refuse_duplicates() const {
  std::vector<std::string_view> names;
  names.reserve(index_.tensors.size() + index_.others.size());
  for (const TensorEntry& entry : index_.tensors) names.push_back(entry.name);
  for (const OtherEntry& entry : index_.others) names.push_back(entry.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    throw FormatError(formatted("{}: expected names that differ, found {} twice",
                                source_.file.path(), in_quotes(*twice)));
  }
}

TensorEntry TensorCollector::entry(const PickledTensor& tensor) {
  TensorEntry entry;
  entry.storage = storage_index(tensor);
  check_extent(tensor, index_.storages[entry.storage]);
  entry.type = tensor.type;
  entry.shape = tensor.shape;
  entry.strides = tensor.strides;
  entry.storage_offset = tensor.storage_offset;
  return entry;
}

std::size_t TensorCollector::storage_index(const PickledTensor& tensor) {
  constexpr std::size_t kLongestKey = 100;  // a number in real files
  const std::string_view key = tensor.storage_key;
  auto known = storages_.find(key);
  if (known == storages_.end()) {
    std::optional<TensorStorage> storage;
    if (key.size() <= kLongestKey) storage = source_.find_storage(key);
    if (!storage) throw DamagedTensor(formatted("its storage {} is missing", in_quotes(key)));
    charge(sizeof(TensorStorage) + storage->label.size());
    known = storages_.emplace(key, index_.storages.size()).first;
    index_.storages.push_back(std::move(*storage));
  }
  const TensorStorage& storage = index_.storages[known->second];
  // A storage may end with a part of an element, which its size in elements leaves out.
  if (storage.bytes < tensor.storage_bytes ||
      storage.bytes - tensor.storage_bytes >= element_size(tensor.type)) {
    throw DamagedTensor(
        formatted("expected {} bytes in {}, found {}: the file is truncated or altered",
                  tensor.storage_bytes, storage.label, storage.bytes));
  }
  return known->second;
}

}  // namespace self_attention::io
