#pragma once

#include <cstdint>
#include <string>

#include "io/element_type.h"
#include "io/torchscript_source.h"

namespace self_attention::exporting {

/// A model of a Triton repository, served by the PyTorch backend.
struct TritonModel {
  std::string name;  ///< the folder's
  io::ScriptForm form;
  io::ElementType dtype = io::ElementType::kFloat32;
  std::int64_t max_batch_size = 0;  ///< 0: requests bring their batch, and none are merged
};

/// Throws std::runtime_error for what the backend cannot serve: an optional mask, bfloat16, a name
/// that is no folder's, a negative batch size.
void check_servable(const TritonModel& model);

/// The text of the model's config.pbtxt: inputs under the names of forward's arguments, variable
/// lengths, batching along N, and the calls that warm the model up. A mask is bool and of rank 4.
/// For fused ops a comment names the library, which the server has no field for.
std::string triton_config(const TritonModel& model);

}  // namespace self_attention::exporting
