#pragma once

#include <map>
#include <span>
#include <string>

#include "io/output_file.h"
#include "io/tensor_source.h"

namespace self_attention::io {

/// Writes a whole safetensors file; the caller commits.
///
/// Equal arguments give equal bytes. Tensors are laid out by falling element size and then by name,
/// and the data start at a multiple of 8, so that every tensor is aligned for its type. Throws
/// FormatError for names that are not UTF-8 or occur twice.
void write_safetensors(OutputFile& file, std::span<const TensorDescription> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const TensorBytes& bytes_of);

}  // namespace self_attention::io
