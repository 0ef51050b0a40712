#pragma once

#include <string>

#include "model.h"

namespace serve {

/// A package of AOTInductor, with as many copies of its buffers as threads may run it.
Model load_package(const std::string& path, int threads);

}  // namespace serve
