// The engine is taken from the headers: the library of fmt would come beside the one in torch.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include "io/formatted.h"

#include <fmt/format.h>

namespace self_attention::io {

std::string formatted_arguments(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

}  // namespace self_attention::io
