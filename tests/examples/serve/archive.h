#pragma once

#include <string>

#include "model.h"

namespace serve {

/// A TorchScript archive.
Model load_archive(const std::string& path);

}  // namespace serve
