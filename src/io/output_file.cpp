#include "io/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "io/format_error.h"
#include "io/formatted.h"

namespace self_attention::io {
namespace {

namespace fs = std::filesystem;

/// The file that a chain of symbolic links ends in; it need not exist.
fs::path resolve_links(fs::path path) {
  constexpr int kMostLinks = 40;  // what Linux follows
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;  // an absolute link replaces the whole path
  }
  return path;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

bool is_same_file(int descriptor, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

/// Removes a temporary file whose lock is free: the process that wrote it is gone. False where
/// there is none.
bool remove_abandoned(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return errno != ENOENT;
  // By the time it is locked, its name may be another's.
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_same_file(descriptor, path)) {
    ::unlink(path.c_str());
  }
  ::close(descriptor);
  return true;
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(path), target_(resolve_links(path).string()) {
  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) fail("the file cannot be reached");
  if (exists && !S_ISREG(status.st_mode)) {
    throw FormatError(formatted("{}: expected a regular file or none, found {}", path_,
                                S_ISDIR(status.st_mode) ? "a directory" : "something else"));
  }
  // A rename would replace a write-protected file; its owner asked for the opposite.
  if (exists && ::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) {
    fail("the file cannot be replaced");
  }
  create_temporary();
  if (exists && ::fchmod(descriptor_, status.st_mode & 07777) != 0) {
    const int reason = errno;
    discard();
    errno = reason;
    fail("setting the mode failed");
  }
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::create_temporary() {
  const fs::path target(target_);
  // File systems allow 255 bytes a name: a long one is cut so that the suffix fits.
  const std::string stem = target.filename().string().substr(0, 200);
  const auto name = [&](unsigned place) {
    return (folder_of(target) / formatted(".{}.{}.tmp", stem, place)).string();
  };
  unsigned place = 0;
  while (remove_abandoned(name(place))) ++place;
  for (place = 0; !claim_temporary(name(place));) ++place;
}

bool OutputFile::claim_temporary(std::string path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    if (errno != EEXIST && errno != EINTR) fail("no file can be created in its folder");
    return false;
  }
  // Held until it is renamed. Where a file system has no locks, none is taken for abandoned.
  while (::flock(descriptor, LOCK_EX) != 0 && errno == EINTR) continue;
  // Until then it could be.
  if (!is_same_file(descriptor, path)) {
    ::close(descriptor);
    return false;
  }
  descriptor_ = descriptor;
  temporary_ = std::move(path);
  return true;
}

void OutputFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("writing failed, the file is as before");
    position_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void OutputFile::write(std::string_view bytes) { write(std::as_bytes(std::span(bytes))); }

void OutputFile::commit() {
  if (::fsync(descriptor_) != 0) fail("writing to disk failed, the file is as before");
  // Some file systems report a full disk only when a file is closed. The lock stays.
  const int copy = ::dup(descriptor_);
  if (copy < 0 || ::close(copy) != 0) fail("closing failed, the file is as before");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail("replacing failed, the file is as before");
  }
  temporary_.clear();
  ::close(std::exchange(descriptor_, -1));
  // Without this the rename itself may be lost in a power cut.
  const std::string folder = folder_of(target_).string();
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // EINVAL: a file system that has nothing to sync for a folder.
  const bool synced = directory >= 0 && (::fsync(directory) == 0 || errno == EINVAL);
  const int reason = errno;
  if (directory >= 0) ::close(directory);
  errno = reason;
  if (!synced) fail("the new file is in place, but its folder could not be synced");
}

void OutputFile::fail(std::string_view action) const {
  throw FormatError(formatted("{}: {}: {}", path_, action, std::strerror(errno)));
}

}  // namespace self_attention::io
