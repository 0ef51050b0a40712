#include "io/torch_zip.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "io/allowance.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/pickle.h"
#include "io/pickled_tensors.h"
#include "io/text.h"
#include "io/torchscript_info.h"

namespace self_attention::io {
namespace {

/// The entry "ROOT/data.pkl", where ROOT is the archive's name when it was saved; or nullptr.
const ZipEntry* find_pickle(const ZipDirectory& directory) {
  constexpr std::string_view kName = "/data.pkl";
  const auto is_pickle = [&](const ZipEntry& entry) {
    return entry.name.ends_with(kName) && entry.name.find('/') == entry.name.size() - kName.size();
  };
  const auto found = std::ranges::find_if(directory.entries, is_pickle);
  return found == directory.entries.end() ? nullptr : &*found;
}

void refuse_big_endian(const InputFile& file, const ZipEntry* entry) {
  constexpr std::string_view kLittle = "little";
  if (entry == nullptr) return;  // before PyTorch 2.1
  const bool fits = entry->bytes == kLittle.size();
  const std::vector<std::byte> order =
      fits ? read_zip_entry(file, *entry) : std::vector<std::byte>();
  if (!fits || std::memcmp(order.data(), kLittle.data(), kLittle.size()) != 0) {
    throw FormatError(
        formatted("{}: expected byte order little, found another: save it again on "
                  "a little-endian machine",
                  file.path()));
  }
}

/// What an archive that this library exported says of itself; empty for others.
std::map<std::string, std::string> read_script_info(const InputFile& file,
                                                    const ZipDirectory& directory,
                                                    const std::string& root) {
  const ZipEntry* entry = directory.find(root + "extra/" + std::string(kScriptInfoFile));
  if (entry == nullptr || !entry->stored) return {};
  const std::vector<std::byte> text = read_zip_entry(file, *entry);
  return parse_script_info({reinterpret_cast<const char*>(text.data()), text.size()});
}

}  // namespace

FileFormat torch_zip_format(const ZipDirectory& directory) {
  const ZipEntry* pickle = find_pickle(directory);
  if (pickle == nullptr) return FileFormat::kTorchZip;
  const std::string root = pickle->name.substr(0, pickle->name.find('/') + 1);
  return directory.find(root + "constants.pkl") != nullptr ? FileFormat::kTorchScript
                                                           : FileFormat::kTorchZip;
}

TensorIndex read_torch_zip(const InputFile& file, const std::string& key) {
  const ZipDirectory directory = read_zip_directory(file);
  const ZipEntry* entry = find_pickle(directory);
  if (entry == nullptr) {
    throw FormatError(formatted(
        "{}: expected an archive of torch.save or torch.jit.save, found a zip without */data.pkl",
        file.path()));
  }
  const std::string root = entry->name.substr(0, entry->name.find('/') + 1);
  refuse_big_endian(file, directory.find(root + "byteorder"));
  const std::vector<std::byte> text = read_zip_entry(file, *entry);
  const Pickle pickle = Pickle::parse({file.path() + ": data.pkl", text, memory_allowance(file)});
  if (pickle.bytes() != text.size()) {
    throw FormatError(
        formatted("{}: data.pkl: expected the pickle to fill its {} bytes, found "
                  "its end at {}",
                  file.path(), text.size(), pickle.bytes()));
  }
  const PickledFile source{file, pickle,
                           [&](std::string_view storage_key) -> std::optional<TensorStorage> {
                             const std::string label = "data/" + std::string(storage_key);
                             const ZipEntry* data = directory.find(root + label);
                             if (data == nullptr) return std::nullopt;
                             require_stored(file, *data);
                             return TensorStorage{label, data->offset, data->bytes, data->crc32};
                           }};
  TensorIndex index;
  index.format = torch_zip_format(directory);
  if (index.format == FileFormat::kTorchZip) {
    add_state_dict(source, key, index);
  } else if (key.empty()) {
    index.metadata = read_script_info(file, directory, root);
    add_module(source, index);
  } else {
    throw FormatError(
        formatted("{}: expected no key for a TorchScript archive, got {}: its "
                  "modules are told by the prefix of their names",
                  file.path(), in_quotes(key)));
  }
  return index;
}

}  // namespace self_attention::io
