#pragma once

#include <span>
#include <string>

#include "io/tensor_source.h"

namespace self_attention::io {

/// The pickle, of protocol 2, that torch.save writes for an OrderedDict of contiguous tensors.
/// The storage of tensor i has the key i. The shapes have passed checked_sizes.
std::string pickle_state_dict(std::span<const TensorDescription> tensors);

}  // namespace self_attention::io
