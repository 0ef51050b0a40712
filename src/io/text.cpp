#include "io/text.h"

#include <vector>

#include "io/formatted.h"

namespace self_attention::io {

std::string joined(std::span<const std::string> texts, std::string_view separator) {
  std::string all;
  for (const std::string& text : texts) {
    if (&text != texts.data()) all += separator;
    all += text;
  }
  return all;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      result += formatted("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  result += text.size() > kLongest ? "...\"" : "\"";
  return result;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::vector<std::string> numbers;
  for (const std::int64_t dimension : shape) numbers.push_back(std::to_string(dimension));
  return formatted("({}{})", joined(numbers, ", "), numbers.size() == 1 ? "," : "");
}

}  // namespace self_attention::io
