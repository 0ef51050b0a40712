#pragma once

#include <stdexcept>

namespace self_attention::io {

/// A file that cannot be used. The message names the file, what was expected and what came.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace self_attention::io
