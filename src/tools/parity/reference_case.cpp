#include "tools/parity/reference_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "io/checksum.h"
#include "io/format_error.h"
#include "io/input_file.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "tools/parity/json_node.h"

namespace self_attention::parity {
namespace {

/// Real layouts leave few gaps; a manifest must not make us allocate without end.
constexpr std::uint64_t kLargestStorage = std::uint64_t{1} << 30;

/// Elements from the first to the last that the strides reach. Throws where that exceeds
/// kLargestStorage bytes.
std::uint64_t storage_elements(const TensorRecord& record, std::string_view place) {
  if (std::ranges::find(record.shape, 0) != record.shape.end()) return 0;
  const std::uint64_t most = kLargestStorage / io::element_size(record.type);
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < record.shape.size(); ++i) {
    const auto steps = static_cast<std::uint64_t>(record.shape[i] - 1);
    const auto stride = static_cast<std::uint64_t>(record.strides[i]);
    if (steps > 0 && stride > (most - 1 - last) / steps) {
      throw io::FormatError(fmt::format(
          "{}: strides: expected a tensor of at most {} bytes, got strides {} for shape "
          "{}; {}",
          place, kLargestStorage, io::shape_text(record.strides), io::shape_text(record.shape),
          kExportAgain));
    }
    last += steps * stride;
  }
  return last + 1;
}

/// Moves to the next index in row-major order.
void advance(std::vector<std::int64_t>& index, const std::vector<std::int64_t>& shape) {
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (++index[i] < shape[i]) return;
    index[i] = 0;
  }
}

/// Lays contiguous elements out with the record's strides. Elements that share a place (stride 0)
/// must be the same.
StridedTensor spread(const TensorRecord& record, std::span<const std::byte> elements,
                     std::string_view place) {
  const std::size_t size = io::element_size(record.type);
  const std::uint64_t count = storage_elements(record, place);
  const bool is_bool = record.type == io::ElementType::kBool;
  StridedTensor tensor{record.type, record.shape, record.strides, {}};
  // All ones is NaN in every floating type.
  tensor.storage.assign(count * size, is_bool ? std::byte{1} : std::byte{0xff});
  std::vector<bool> written(count, false);
  std::vector<std::int64_t> index(record.shape.size(), 0);
  for (std::size_t source = 0; source < elements.size(); source += size) {
    std::uint64_t target = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      target += static_cast<std::uint64_t>(index[i] * record.strides[i]);
    }
    std::byte* destination = tensor.storage.data() + target * size;
    if (written[target] && std::memcmp(destination, &elements[source], size) != 0) {
      throw io::FormatError(
          fmt::format("{}: strides {} put different elements of shape {} into one place; {}", place,
                      io::shape_text(record.strides), io::shape_text(record.shape), kExportAgain));
    }
    std::memcpy(destination, &elements[source], size);
    written[target] = true;
    advance(index, record.shape);
  }
  return tensor;
}

}  // namespace

const StridedTensor* ReferenceCase::find(const std::string& role) const {
  const auto found = tensors.find(role);
  return found == tensors.end() ? nullptr : &found->second;
}

std::map<std::string, const StridedTensor*> ReferenceCase::starting_with(
    std::string_view prefix) const {
  std::map<std::string, const StridedTensor*> result;
  for (const auto& [role, tensor] : tensors) {
    if (role.starts_with(prefix)) result.emplace(role.substr(prefix.size()), &tensor);
  }
  return result;
}

struct ReferenceReader::DataFile {
  io::InputFile file;
  io::SafetensorsHeader header;
};

ReferenceReader::ReferenceReader(const Manifest& manifest) : manifest_(&manifest) {}
ReferenceReader::~ReferenceReader() = default;
ReferenceReader::ReferenceReader(ReferenceReader&&) noexcept = default;

const ReferenceReader::DataFile& ReferenceReader::open(const CaseRecord& record) {
  std::unique_ptr<DataFile>& slot = files_[record.file];
  if (slot) return *slot;
  try {
    io::InputFile file((std::filesystem::path(manifest_->directory) / record.file).string());
    io::SafetensorsHeader header = io::read_safetensors_header(file);
    slot = std::make_unique<DataFile>(DataFile{std::move(file), std::move(header)});
  } catch (const io::FormatError& error) {
    throw io::FormatError(
        fmt::format("{} (case {} is in it); {}", error.what(), record.name, kExportAgain));
  }
  return *slot;
}

ReferenceCase ReferenceReader::load(const CaseRecord& record) {
  ReferenceCase result{&record, {}};
  for (const auto& [role, tensor] : record.tensors) {
    result.tensors.emplace(role, load_tensor(open(record), record, role));
  }
  return result;
}

StridedTensor ReferenceReader::load_tensor(const DataFile& data, const CaseRecord& record,
                                           const std::string& role) {
  const TensorRecord& expected = record.tensors.at(role);
  const std::string place =
      fmt::format("{}: case {}: tensor {}", data.file.path(), record.name, io::in_quotes(role));
  const auto refuse = [&](const std::string& what) {
    throw io::FormatError(fmt::format("{}: {}; {}", place, what, kExportAgain));
  };
  const io::SafetensorsEntry* entry = data.header.find(record.name + "/" + role);
  if (entry == nullptr) refuse("the file does not hold it");
  if (entry->type != expected.type || entry->shape != expected.shape) {
    refuse(fmt::format("the manifest says {} {}, the file {} {}", io::element_name(expected.type),
                       io::shape_text(expected.shape), io::element_name(entry->type),
                       io::shape_text(entry->shape)));
  }
  std::vector<std::byte> bytes(entry->bytes);
  data.file.read(entry->offset, bytes);
  if (const std::uint32_t actual = io::crc32(bytes); actual != expected.crc32) {
    refuse(fmt::format(
        "the manifest says checksum {:08x}, the file has {:08x}: one of them was altered",
        expected.crc32, actual));
  }
  return spread(expected, bytes, place);
}

}  // namespace self_attention::parity
