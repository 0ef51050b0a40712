#include "model.h"

#include <string_view>

#include "archive.h"
#include "package.h"

namespace serve {

Model load_model(const std::string& path, int threads) {
  return path.ends_with(".pt2") ? load_package(path, threads) : load_archive(path);
}

std::string short_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  constexpr std::string_view kSpaces = " \n";
  const auto last = text.find_last_not_of(kSpaces);
  if (last == std::string::npos) return "no message";
  const auto before = text.rfind('\n', last);
  const auto first = before == std::string::npos ? 0 : before + 1;
  const std::string line = text.substr(first, last - first + 1);
  // The library's own messages begin with who says them.
  const auto ours = line.find(": [");
  return ours == std::string::npos ? line : line.substr(ours + 2);
}

}  // namespace serve
