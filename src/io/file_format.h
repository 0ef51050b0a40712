#pragma once

#include <cstdint>
#include <string_view>

#include "io/input_file.h"

namespace self_attention::io {

/// What a tensor file is, told from its bytes and never from its name.
enum class FileFormat : std::uint8_t {
  kSafetensors,
  kTorchZip,     ///< torch.save since PyTorch 1.6
  kTorchScript,  ///< torch.jit.save, and torch::save of C++
  kTorchLegacy,  ///< torch.save before PyTorch 1.6
};

/// "safetensors", "PyTorch checkpoint", ...
std::string_view format_name(FileFormat format);

/// Throws FormatError for any other file; the message names what it looks like and the remedy.
FileFormat detect_format(const InputFile& file);

/// What the first bytes alone tell.
enum class FileContainer : std::uint8_t { kSafetensors, kZip, kTorchLegacy };

/// The first half of detect_format, for readers that go on by themselves.
FileContainer detect_container(const InputFile& file);

}  // namespace self_attention::io
