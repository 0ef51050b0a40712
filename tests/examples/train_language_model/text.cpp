#include "text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <stdexcept>

namespace language_model {
namespace {

constexpr std::int64_t kStretches = 40;
constexpr std::int64_t kTrainingStretches = 9;  // then one for validation
constexpr std::int64_t kMostValidationWindows = 64;
constexpr int kByteValues = 256;

std::string read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  std::string content;
  std::array<char, 1 << 16> part;
  std::size_t count = 0;
  while (file && (count = std::fread(part.data(), 1, part.size(), file.get())) > 0) {
    content.append(part.data(), count);
  }
  if (!file || std::ferror(file.get()) != 0) {
    throw std::runtime_error(
        fmt::format("--text {}: the file cannot be read: {}", path, std::strerror(errno)));
  }
  return content;
}

/// FNV-1a.
std::int64_t checksum_of(std::string_view content) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const char character : content) {
    sum = (sum ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  }
  return static_cast<std::int64_t>(sum);
}

}  // namespace

Text::Text(const std::string& path, std::int64_t context) : path_(path) {
  const std::string content = read_file(path);
  if (std::ssize(content) / kStretches <= context) {
    throw std::runtime_error(
        fmt::format("--text {}: expected at least {} bytes, so that a fortieth holds --context {} "
                    "and one more, got {}",
                    path, (context + 1) * kStretches, context, content.size()));
  }
  read(content);
  split(context);
}

void Text::read(const std::string& content) {
  std::array<bool, kByteValues> seen{};
  for (const char character : content) seen[static_cast<unsigned char>(character)] = true;
  std::array<unsigned char, kByteValues> numbers{};
  for (int byte = 0; byte < kByteValues; ++byte) {
    if (!seen[byte]) continue;
    numbers[byte] = static_cast<unsigned char>(bytes_.size());
    bytes_.push_back(static_cast<unsigned char>(byte));
  }
  numbers_.reserve(content.size());
  for (const char character : content) {
    numbers_.push_back(numbers[static_cast<unsigned char>(character)]);
  }
  checksum_ = checksum_of(content);
}

void Text::split(std::int64_t context) {
  const std::int64_t size = std::ssize(numbers_);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < kStretches; i += kTrainingStretches + 1) {
    const std::int64_t begin = i * size / kStretches;
    const std::int64_t middle = (i + kTrainingStretches) * size / kStretches;
    const std::int64_t end = (i + kTrainingStretches + 1) * size / kStretches;
    training_.push_back({begin, middle - begin - context});
    for (std::int64_t start = middle; start + context < end; start += context) {
      starts.push_back(start);
    }
  }
  const std::int64_t used = std::min(std::ssize(starts), kMostValidationWindows);
  for (std::int64_t i = 0; i < used; ++i) {
    validation_starts_.push_back(starts[i * std::ssize(starts) / used]);
  }
}

std::int64_t Text::training_windows() const {
  std::int64_t windows = 0;
  for (const Run& run : training_) windows += run.windows;
  return windows;
}

std::int64_t Text::training_start(std::int64_t window) const {
  auto run = training_.begin();
  for (; window >= run->windows; ++run) window -= run->windows;
  return run->start + window;
}

std::vector<std::int64_t> Text::encode(std::string_view text) const {
  std::vector<std::int64_t> encoded;
  encoded.reserve(text.size());
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    const auto place = std::ranges::lower_bound(bytes_, byte);
    if (place == bytes_.end() || *place != byte) {
      throw std::runtime_error(fmt::format(
          "--prompt: expected characters of {}, got byte 0x{:02x}, which it lacks", path_, byte));
    }
    encoded.push_back(place - bytes_.begin());
  }
  return encoded;
}

std::string Text::decode(std::span<const std::int64_t> numbers) const {
  std::string text;
  for (const std::int64_t number : numbers) {
    text.push_back(static_cast<char>(bytes_.at(static_cast<std::size_t>(number))));
  }
  return text;
}

}  // namespace language_model
