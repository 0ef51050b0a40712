#pragma once

#include <torch/types.h>

#include <optional>

#include "io/element_type.h"

namespace self_attention::io {

/// LibTorch's name of an element type.
torch::ScalarType scalar_type(ElementType type);

/// The element type of a tensor's dtype; nothing for the dtypes that files here do not hold.
std::optional<ElementType> element_type(torch::ScalarType type);

}  // namespace self_attention::io
