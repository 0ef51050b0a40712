#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/format_error.h"
#include "io/formatted.h"

namespace self_attention::io {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a FIFO without a writer must reach the check below instead of waiting here.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    throw FormatError(formatted("{}: cannot be opened: {}", path_, std::strerror(errno)));
  }
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    // The destructor does not run for a constructor that throws.
    ::close(std::exchange(descriptor_, -1));
    throw FormatError(formatted("{}: expected a regular file, found {}", path_,
                                S_ISDIR(status.st_mode) ? "a directory" : "something else"));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile InputFile::from_memory(std::string name, std::vector<std::byte> bytes) {
  InputFile file;
  file.path_ = std::move(name);
  file.size_ = bytes.size();
  file.memory_ = std::move(bytes);
  return file;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      memory_(std::move(other.memory_)),
      size_(std::exchange(other.size_, 0)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  return *this;
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> destination) const {
  if (offset > size_ || destination.size() > size_ - offset) {
    throw FormatError(formatted("{}: expected {} bytes at offset {}, the file has only {}", path_,
                                destination.size(), offset, size_));
  }
  if (descriptor_ < 0) {
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(offset), destination.size(),
                destination.begin());
    return;
  }
  while (!destination.empty()) {
    const ssize_t count =
        ::pread(descriptor_, destination.data(), destination.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw FormatError(
          formatted("{}: reading at offset {} failed: {}", path_, offset, std::strerror(errno)));
    }
    if (count == 0) {
      throw FormatError(formatted(
          "{}: the file has become shorter while it was read: expected {} bytes, it ends at {}",
          path_, size_, offset));
    }
    offset += static_cast<std::uint64_t>(count);
    destination = destination.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace self_attention::io
