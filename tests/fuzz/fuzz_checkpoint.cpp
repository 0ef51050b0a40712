#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/format_error.h"
#include "io/tensor_index.h"
#include "io/torch_legacy.h"
#include "support/zip_builder.h"

namespace {

namespace io = self_attention::io;
namespace io_test = self_attention::io_test;

/// An archive's checksums stop nearly every changed pickle, so bare pickles are inputs as well,
/// and the archive around one is made here.
std::string archive_of(std::string_view pickle) {
  return io_test::build_zip({{.name = "a/data.pkl", .data = std::string(pickle)},
                             {.name = "a/data/0", .data = std::string(24, 'x')}});
}

/// The last element of each tensor is read, so that a wrong extent is an error of memory.
void read_all(const io::InputFile& file, const io::TensorIndex& index) {
  std::vector<std::vector<std::byte>> storages;
  std::uint64_t total = 0;
  for (const io::TensorStorage& storage : index.storages) {
    total += storage.bytes;
    if (total > file.size()) __builtin_trap();  // storages do not overlap
    io::read_storage(file, storage, storages.emplace_back(storage.bytes));
  }
  volatile std::byte sink{};
  for (const io::TensorEntry& tensor : index.tensors) {
    std::uint64_t last = tensor.storage_offset;
    bool empty = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      empty = empty || tensor.shape[i] == 0;
      last += static_cast<std::uint64_t>((tensor.shape[i] - 1) * tensor.strides[i]);
    }
    const std::vector<std::byte>& storage = storages[tensor.storage];
    if (!empty) sink = storage[(last + 1) * io::element_size(tensor.type) - 1];
  }
  (void)sink;
}

}  // namespace

/// Any bytes give an index whose tensors can be read, or a FormatError.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const bool pickle = input.starts_with('\x80') && !input.starts_with(io::kTorchLegacyMagic);
  const io::InputFile file = pickle ? io_test::file_of(archive_of(input)) : io_test::file_of(input);
  for (const char* key : {"", "model"}) {
    try {
      read_all(file, io::read_tensor_index(file, key));
    } catch (const io::FormatError&) {
    }
  }
  return 0;
}
