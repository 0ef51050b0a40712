#pragma once

#include <span>

#include "io/output_file.h"
#include "io/tensor_source.h"

namespace self_attention::io {

/// Writes a whole file that Python's torch.load opens at its defaults, as an OrderedDict of
/// tensors; the caller commits. Equal arguments give equal bytes. Throws FormatError for names
/// that occur twice.
void write_torch_zip(OutputFile& file, std::span<const TensorDescription> tensors,
                     const TensorBytes& bytes_of);

}  // namespace self_attention::io
