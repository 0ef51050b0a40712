#pragma once

#include <string>

#include "io/file_format.h"
#include "io/input_file.h"
#include "io/tensor_index.h"
#include "io/zip_reader.h"

namespace self_attention::io {

/// kTorchZip or kTorchScript.
FileFormat torch_zip_format(const ZipDirectory& directory);

/// read_tensor_index for both.
TensorIndex read_torch_zip(const InputFile& file, const std::string& key);

}  // namespace self_attention::io
