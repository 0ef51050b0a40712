#include "io/zip_reader.h"

#include <algorithm>
#include <array>
#include <optional>

#include "io/checked.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/little_endian.h"
#include "io/text.h"
#include "io/verified_read.h"
#include "io/zip_format.h"

namespace self_attention::io {
namespace {

/// Where the central directory lies and how many entries it lists.
struct DirectoryPlace {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t entries;
};

/// What a central and a local header both say of an entry.
struct EntryHeader {
  std::uint16_t flags;
  std::uint16_t method;
  std::uint32_t crc32;
  std::uint64_t compressed;
  std::uint64_t uncompressed;
};

class DirectoryReader {
 public:
  explicit DirectoryReader(const InputFile& file) : file_(file) {}

  ZipDirectory read() {
    const DirectoryPlace place = find_directory();
    directory_start_ = place.offset;
    std::vector<std::byte> text(place.bytes);
    file_.read(place.offset, text);
    ZipDirectory directory;
    directory.entries.reserve(place.entries);
    std::span<const std::byte> rest = text;
    for (std::uint64_t i = 0; i < place.entries; ++i) {
      directory.entries.push_back(read_central(rest, i));
    }
    if (!rest.empty()) {
      fail(formatted("expected {} entries in the directory, found {} bytes after them",
                     place.entries, rest.size()));
    }
    refuse_overlaps(directory.entries);
    std::ranges::sort(directory.entries, {}, &ZipEntry::name);
    const auto twice = std::ranges::adjacent_find(directory.entries, {}, &ZipEntry::name);
    if (twice != directory.entries.end()) {
      fail(formatted("entry {} occurs twice", in_quotes(twice->name)));
    }
    return directory;
  }

 private:
  DirectoryPlace find_directory() const {
    const std::uint64_t end = find_end_record();
    std::array<std::byte, zip::kEndBytes> record{};
    file_.read(end, record);
    const auto disk = little_endian<std::uint16_t>(&record[4]);
    const auto entries = little_endian<std::uint16_t>(&record[10]);
    const auto bytes = little_endian<std::uint32_t>(&record[12]);
    const auto offset = little_endian<std::uint32_t>(&record[16]);
    DirectoryPlace place{offset, bytes, entries};
    std::uint64_t place_end = end;
    if (const auto end64 = find_end64_record(end)) {
      place = read_end64_record(*end64);
      place_end = *end64;
      const bool agrees = (entries == zip::kIn64Short || entries == place.entries) &&
                          (bytes == zip::kIn64 || bytes == place.bytes) &&
                          (offset == zip::kIn64 || offset == place.offset);
      if (!agrees) fail("the end record and the ZIP64 end record contradict each other");
    }
    if (disk != 0) fail(formatted("expected one disk, found part {} of several", disk));
    if (checked_add(place.offset, place.bytes) != place_end) {
      fail(formatted("expected the directory to end at byte {}, found {} bytes from {}", place_end,
                     place.bytes, place.offset));
    }
    if (place.entries > place.bytes / zip::kCentralBytes) {
      fail(formatted("{} entries do not fit a directory of {} bytes", place.entries, place.bytes));
    }
    return place;
  }

  /// The end record is the last one whose comment reaches exactly to the end of the file.
  std::uint64_t find_end_record() const {
    constexpr std::uint64_t kLongestComment = 0xffff;
    const std::uint64_t length = std::min(file_.size(), zip::kEndBytes + kLongestComment);
    std::vector<std::byte> tail(length);
    file_.read(file_.size() - length, tail);
    for (std::uint64_t comment = 0; comment + zip::kEndBytes <= length; ++comment) {
      const std::uint64_t start = length - zip::kEndBytes - comment;
      if (little_endian<std::uint32_t>(&tail[start]) == zip::kEndSignature &&
          little_endian<std::uint16_t>(&tail[start + 20]) == comment) {
        return file_.size() - length + start;
      }
    }
    fail("expected a directory at the end, found none: the file is truncated");
  }

  std::optional<std::uint64_t> find_end64_record(std::uint64_t end) const {
    if (end < zip::kLocatorBytes) return std::nullopt;
    const std::uint64_t start = end - zip::kLocatorBytes;
    std::array<std::byte, zip::kLocatorBytes> locator{};
    file_.read(start, locator);
    if (little_endian<std::uint32_t>(locator.data()) != zip::kLocatorSignature) {
      return std::nullopt;
    }
    const auto offset = little_endian<std::uint64_t>(&locator[8]);
    if (checked_add(offset, zip::kEnd64Bytes) != start) {
      fail(formatted("expected the ZIP64 end record just before byte {}, found it at {}", start,
                     offset));
    }
    return offset;
  }

  DirectoryPlace read_end64_record(std::uint64_t offset) const {
    std::array<std::byte, zip::kEnd64Bytes> record{};
    file_.read(offset, record);
    if (little_endian<std::uint32_t>(record.data()) != zip::kEnd64Signature) {
      fail(formatted("expected a ZIP64 end record at byte {}", offset));
    }
    return {little_endian<std::uint64_t>(&record[48]), little_endian<std::uint64_t>(&record[40]),
            little_endian<std::uint64_t>(&record[32])};
  }

  /// Takes one record off the front of `rest`.
  ZipEntry read_central(std::span<const std::byte>& rest, std::uint64_t index) const {
    if (rest.size() < zip::kCentralBytes ||
        little_endian<std::uint32_t>(rest.data()) != zip::kCentralSignature) {
      fail(formatted("expected record {} of the directory, found something else", index));
    }
    const std::size_t name_length = little_endian<std::uint16_t>(&rest[28]);
    const std::size_t extra_length = little_endian<std::uint16_t>(&rest[30]);
    const std::size_t comment_length = little_endian<std::uint16_t>(&rest[32]);
    const std::size_t length = zip::kCentralBytes + name_length + extra_length + comment_length;
    if (length > rest.size()) {
      fail(formatted("record {} of the directory leaves the directory", index));
    }
    ZipEntry entry{};
    entry.name = text_of(rest.subspan(zip::kCentralBytes, name_length));
    EntryHeader header = read_fields(rest.subspan(8, 20));
    std::uint64_t offset = little_endian<std::uint32_t>(&rest[42]);
    Zip64Numbers numbers{&header.uncompressed, &header.compressed, &offset};
    resolve_64(rest.subspan(zip::kCentralBytes + name_length, extra_length), numbers, entry.name);
    rest = rest.subspan(length);
    entry.header_offset = offset;
    entry.bytes = header.compressed;
    entry.crc32 = header.crc32;
    entry.stored = header.method == 0 && (header.flags & zip::kEncryptedFlag) == 0;
    if (entry.stored && header.compressed != header.uncompressed) {
      fail_entry(entry.name, formatted("is stored as {} bytes, but holds {}", header.compressed,
                                       header.uncompressed));
    }
    entry.offset = locate_data(entry, header);
    return entry;
  }

  /// Compares the local header and returns where the data start.
  std::uint64_t locate_data(const ZipEntry& entry, const EntryHeader& central) const {
    const auto header_end = checked_add(entry.header_offset, zip::kLocalBytes);
    if (!header_end || *header_end > directory_start_) {
      fail_entry(entry.name,
                 formatted("starts at byte {}, outside of the data", entry.header_offset));
    }
    std::array<std::byte, zip::kLocalBytes> fixed{};
    file_.read(entry.header_offset, fixed);
    if (little_endian<std::uint32_t>(fixed.data()) != zip::kLocalSignature) {
      fail_entry(entry.name, formatted("has no header at byte {}", entry.header_offset));
    }
    const std::size_t name_length = little_endian<std::uint16_t>(&fixed[26]);
    const std::size_t extra_length = little_endian<std::uint16_t>(&fixed[28]);
    const std::uint64_t start = *header_end + name_length + extra_length;
    const auto end = checked_add(start, entry.bytes);
    if (start > directory_start_ || !end || *end > directory_start_) {
      fail_entry(entry.name, formatted("expected {} bytes of data from byte {}, the data end at {}",
                                       entry.bytes, start, directory_start_));
    }
    std::vector<std::byte> variable(name_length + extra_length);
    file_.read(*header_end, variable);
    const std::span<const std::byte> view = variable;
    if (text_of(view.first(name_length)) != entry.name) {
      fail_entry(entry.name, formatted("is called {} in its own header",
                                       in_quotes(text_of(view.first(name_length)))));
    }
    EntryHeader local = read_fields(std::span(fixed).subspan(6, 20));
    Zip64Numbers numbers{&local.uncompressed, &local.compressed, nullptr};
    if ((local.flags & zip::kDescriptorFlag) == 0) {
      resolve_64(view.subspan(name_length), numbers, entry.name);
    }
    compare(entry.name, central, local);
    return start;
  }

  void compare(const std::string& name, const EntryHeader& central,
               const EntryHeader& local) const {
    // Where a descriptor follows the data, the local numbers mean nothing.
    const bool open = (local.flags & zip::kDescriptorFlag) != 0;
    const bool same =
        local.method == central.method &&
        ((local.flags ^ central.flags) & zip::kEncryptedFlag) == 0 &&
        (open || (local.crc32 == central.crc32 && local.compressed == central.compressed &&
                  local.uncompressed == central.uncompressed));
    if (!same) fail_entry(name, "its own header and the directory contradict each other");
  }

  /// The part that both headers have in common, from the flags to the uncompressed size.
  static EntryHeader read_fields(std::span<const std::byte> bytes) {
    return {little_endian<std::uint16_t>(bytes.data()), little_endian<std::uint16_t>(&bytes[2]),
            little_endian<std::uint32_t>(&bytes[8]), little_endian<std::uint32_t>(&bytes[12]),
            little_endian<std::uint32_t>(&bytes[16])};
  }

  /// Numbers that the ZIP64 field may hold, in its order; nullptr where the header has none.
  using Zip64Numbers = std::array<std::uint64_t*, 3>;

  /// Replaces the numbers that the header left to the ZIP64 field.
  void resolve_64(std::span<const std::byte> extra, const Zip64Numbers& numbers,
                  const std::string& name) const {
    const auto is_open = [](const std::uint64_t* number) {
      return number != nullptr && *number == zip::kIn64;
    };
    if (std::ranges::none_of(numbers, is_open)) return;
    std::span<const std::byte> field = find_field(extra, zip::kZip64Field);
    for (std::uint64_t* number : numbers) {
      if (!is_open(number)) continue;
      if (field.size() < sizeof(std::uint64_t)) {
        fail_entry(name, "announces ZIP64 numbers that its extra field does not hold");
      }
      *number = little_endian<std::uint64_t>(field.data());
      field = field.subspan(sizeof(std::uint64_t));
    }
  }

  /// The content of the extra field with that id; empty if there is none.
  static std::span<const std::byte> find_field(std::span<const std::byte> extra, std::uint16_t id) {
    constexpr std::size_t kFieldHeader = 4;
    while (extra.size() >= kFieldHeader) {
      const std::size_t size = little_endian<std::uint16_t>(&extra[2]);
      if (size > extra.size() - kFieldHeader) break;
      if (little_endian<std::uint16_t>(extra.data()) == id) {
        return extra.subspan(kFieldHeader, size);
      }
      extra = extra.subspan(kFieldHeader + size);
    }
    return {};
  }

  void refuse_overlaps(std::vector<ZipEntry>& entries) const {
    std::ranges::sort(entries, {}, &ZipEntry::header_offset);
    for (std::size_t i = 1; i < entries.size(); ++i) {
      const ZipEntry& before = entries[i - 1];
      if (entries[i].header_offset < before.offset + before.bytes) {
        fail_entry(entries[i].name, formatted("overlaps entry {}", in_quotes(before.name)));
      }
    }
  }

  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  [[noreturn]] void fail_entry(const std::string& name, const std::string& what) const {
    fail(formatted("entry {} {}", in_quotes(name), what));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(formatted("{}: zip archive: {}", file_.path(), what));
  }

  const InputFile& file_;
  std::uint64_t directory_start_ = 0;
};

}  // namespace

const ZipEntry* ZipDirectory::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries, name, {}, &ZipEntry::name);
  return found != entries.end() && found->name == name ? &*found : nullptr;
}

ZipDirectory read_zip_directory(const InputFile& file) { return DirectoryReader(file).read(); }

void require_stored(const InputFile& file, const ZipEntry& entry) {
  if (entry.stored) return;
  throw FormatError(
      formatted("{}: entry {}: expected it stored as torch.save does, found it compressed or "
                "encrypted: was the archive packed again?",
                file.path(), in_quotes(entry.name)));
}

std::vector<std::byte> read_zip_entry(const InputFile& file, const ZipEntry& entry) {
  require_stored(file, entry);
  std::vector<std::byte> bytes(entry.bytes);
  read_verified(file, {"entry " + in_quotes(entry.name), entry.offset, entry.crc32}, bytes);
  return bytes;
}

}  // namespace self_attention::io
