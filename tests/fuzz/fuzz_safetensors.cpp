#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/format_error.h"
#include "io/safetensors.h"

/// Any bytes give a header whose tensors can be read, or a FormatError.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace io = self_attention::io;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const io::InputFile file = io::InputFile::from_memory("input", {bytes, bytes + size});
  try {
    const io::SafetensorsHeader header =
        io::read_safetensors_header(file, io::UnsupportedTypes::kList);
    for (const io::SafetensorsEntry& entry : header.entries) {
      std::vector<std::byte> content(entry.bytes);
      file.read(entry.offset, content);
      if (header.find(entry.name) != &entry) __builtin_trap();
    }
  } catch (const io::FormatError&) {
  }
  return 0;
}
