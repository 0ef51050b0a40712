#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "io/checksum.h"
#include "io/safetensors.h"
#include "support/temporary_folder.h"

namespace self_attention::parity {

/// A copy of the snapshot of shared_projection that a test can spoil.
class ReferenceCopy {
 public:
  ReferenceCopy() {
    const auto source = std::filesystem::path(SELF_ATTENTION_SNAPSHOT_DIR) / "shared_projection";
    std::filesystem::copy(source, directory());
    std::ifstream stream(manifest_path());
    manifest = nlohmann::ordered_json::parse(stream);
  }

  /// Writes `manifest` back.
  void save() const { write(manifest_path(), manifest.dump()); }

  std::string directory() const { return (folder_.path() / "reference").string(); }
  std::string manifest_path() const { return directory() + "/manifest.json"; }
  std::string data_path() const { return directory() + "/shared_projection.safetensors"; }
  const std::filesystem::path& folder() const { return folder_.path(); }

  /// The first case of that dtype that owes `owes`.
  nlohmann::ordered_json& first_case(std::string_view owes, std::string_view dtype = "float32") {
    for (auto& entry : manifest["cases"]) {
      if (entry["owes"] == owes && entry["dtype"] == dtype) return entry;
    }
    throw std::runtime_error("the snapshot lacks such a case");
  }

  /// Puts `element` in place of the first element of a tensor; the checksum stays as it was.
  template <typename T>
  void overwrite(const nlohmann::ordered_json& entry, const std::string& role, T element) const {
    const io::SafetensorsEntry tensor = stored(entry, role);
    std::fstream stream(data_path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(tensor.offset));
    stream.write(reinterpret_cast<const char*>(&element), sizeof(element));
  }

  /// Makes the manifest's checksum that of the stored bytes.
  void correct_checksum(nlohmann::ordered_json& entry, const std::string& role) const {
    const io::SafetensorsEntry tensor = stored(entry, role);
    const std::string bytes = read(data_path()).substr(tensor.offset, tensor.bytes);
    char digits[9];
    std::snprintf(digits, sizeof(digits), "%08x", io::crc32(std::as_bytes(std::span(bytes))));
    entry["tensors"][role]["crc32"] = digits;
  }

  static std::string read(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  static void write(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  nlohmann::ordered_json manifest;

 private:
  io::SafetensorsEntry stored(const nlohmann::ordered_json& entry, const std::string& role) const {
    const io::SafetensorsHeader header = io::read_safetensors_header(io::InputFile(data_path()));
    const auto* tensor = header.find(entry["name"].get<std::string>() + "/" + role);
    if (tensor == nullptr) throw std::runtime_error("the snapshot lacks tensor " + role);
    return *tensor;
  }

  io_test::TemporaryFolder folder_;
};

}  // namespace self_attention::parity
