#pragma once

#include <string>
#include <string_view>

#include "io/input_file.h"
#include "io/tensor_index.h"

namespace self_attention::io {

/// How torch.save's files before PyTorch 1.6 start: a pickle of one magic number.
inline constexpr std::string_view kTorchLegacyMagic =
    std::string_view("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);

/// read_tensor_index for them. After the magic number they hold four pickles (protocol version,
/// byte order, the object, the keys of its storages), then each storage as its number of elements
/// in 8 bytes and its data. There are no checksums.
TensorIndex read_torch_legacy(const InputFile& file, const std::string& key);

}  // namespace self_attention::io
