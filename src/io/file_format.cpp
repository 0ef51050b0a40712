#include "io/file_format.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "io/format_error.h"
#include "io/formatted.h"
#include "io/torch_legacy.h"
#include "io/torch_zip.h"
#include "io/zip_reader.h"

namespace self_attention::io {
namespace {

using namespace std::string_view_literals;

/// What people hand over by mistake, by its first bytes, and the remedy.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOthers = {{
    {"version https://git-lfs"sv, "a Git LFS pointer: fetch the file itself with git lfs pull"sv},
    {"<"sv, "a web page or XML: the download went wrong"sv},
    {"\x89HDF"sv, "HDF5, as Keras writes it"sv},
    {"\x1f\x8b"sv, "gzip: unpack it first"sv},
    {"GGUF"sv, "GGUF"sv},
    {"\x93NUMPY"sv, "a NumPy array"sv},
    {"\x80"sv,
     "a Python pickle that torch.save did not write: load it in Python, then torch.save its "
     "tensors in a dict"sv},
}};

bool is_old_tar(const InputFile& file) {
  constexpr std::uint64_t kMagicOffset = 257;
  std::array<char, 5> magic{};
  if (file.size() < kMagicOffset + magic.size()) return false;
  file.read(kMagicOffset, std::as_writable_bytes(std::span(magic)));
  return std::string_view(magic.data(), magic.size()) == "ustar";
}

[[noreturn]] void refuse(const InputFile& file, std::string_view start) {
  std::string_view looks_like = "something else";
  const auto* other =
      std::ranges::find_if(kOthers, [&](const auto& row) { return start.starts_with(row.first); });
  if (file.size() == 0) {
    looks_like = "an empty file";
  } else if (is_old_tar(file)) {
    looks_like = "a tar archive, as PyTorch wrote before 0.1.10: save it again in Python";
  } else if (other != kOthers.end()) {
    looks_like = other->second;
  }
  throw FormatError(
      formatted("{}: expected safetensors or a file of torch.save or torch.jit.save, found {}",
                file.path(), looks_like));
}

}  // namespace

std::string_view format_name(FileFormat format) {
  switch (format) {
    case FileFormat::kSafetensors:
      return "safetensors";
    case FileFormat::kTorchZip:
      return "PyTorch checkpoint";
    case FileFormat::kTorchScript:
      return "TorchScript archive";
    case FileFormat::kTorchLegacy:
      return "PyTorch checkpoint, legacy format";
  }
  return "?";
}

FileContainer detect_container(const InputFile& file) {
  std::array<char, 32> buffer{};
  const std::size_t length = std::min<std::uint64_t>(buffer.size(), file.size());
  file.read(0, std::as_writable_bytes(std::span(buffer).first(length)));
  const std::string_view start(buffer.data(), length);
  // A length, which can look like anything, then the first character of the JSON.
  constexpr std::size_t kBrace = 8;
  if (start.size() > kBrace && start[kBrace] == '{') return FileContainer::kSafetensors;
  if (start.starts_with("PK\3\4") || start.starts_with("PK\5\6")) return FileContainer::kZip;
  if (start.starts_with(kTorchLegacyMagic)) return FileContainer::kTorchLegacy;
  refuse(file, start);
}

FileFormat detect_format(const InputFile& file) {
  switch (detect_container(file)) {
    case FileContainer::kSafetensors:
      return FileFormat::kSafetensors;
    case FileContainer::kTorchLegacy:
      return FileFormat::kTorchLegacy;
    default:
      return torch_zip_format(read_zip_directory(file));
  }
}

}  // namespace self_attention::io
