#include "io/zip_writer.h"

#include <algorithm>
#include <initializer_list>

#include "io/checksum.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/little_endian.h"
#include "io/zip_format.h"

namespace self_attention::io {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint16_t kPaddingField = 0x4246;  // "FB", as torch.save calls it
constexpr std::uint16_t kFieldHeader = 4;
constexpr std::uint16_t kVersion = 20;    // of the format: folders in names
constexpr std::uint16_t kVersion64 = 45;  // ZIP64
constexpr std::uint16_t kUtf8Flag = 1U << 11;
constexpr std::uint16_t kFirstOfJanuary1980 = (1U << 5) | 1U;

void append_zip64_field(std::string& out, std::initializer_list<std::uint64_t> numbers) {
  append_little_endian(out, zip::kZip64Field);
  append_little_endian(out, static_cast<std::uint16_t>(numbers.size() * sizeof(std::uint64_t)));
  for (const std::uint64_t number : numbers) append_little_endian(out, number);
}

void append_common(std::string& out, bool is_64, std::uint32_t crc, std::uint64_t bytes) {
  const std::uint32_t size = is_64 ? zip::kIn64 : static_cast<std::uint32_t>(bytes);
  append_little_endian(out, is_64 ? kVersion64 : kVersion);
  append_little_endian(out, kUtf8Flag);
  append_little_endian(out, std::uint16_t{0});  // stored
  append_little_endian(out, std::uint16_t{0});  // midnight
  append_little_endian(out, kFirstOfJanuary1980);
  append_little_endian(out, crc);
  append_little_endian(out, size);
  append_little_endian(out, size);
}

/// The ZIP64 end record of a directory that lies from `start` to `end`, and the record's locator.
void append_end64(std::string& out, std::uint64_t count, std::uint64_t start, std::uint64_t end) {
  append_little_endian(out, zip::kEnd64Signature);
  append_little_endian(out, zip::kEnd64Bytes - 12);  // without signature and this number
  append_little_endian(out, kVersion64);
  append_little_endian(out, kVersion64);
  append_little_endian(out, std::uint64_t{0});  // disks
  append_little_endian(out, count);
  append_little_endian(out, count);
  append_little_endian(out, end - start);
  append_little_endian(out, start);
  append_little_endian(out, zip::kLocatorSignature);
  append_little_endian(out, std::uint32_t{0});  // disk
  append_little_endian(out, end);
  append_little_endian(out, std::uint32_t{1});  // disks
}

}  // namespace

ZipWriter::ZipWriter(OutputFile& file, std::uint64_t zip64_from)
    : file_(file), zip64_from_(zip64_from) {}

void ZipWriter::add(const std::string& name, std::span<const std::byte> data) {
  if (name.size() > zip::kIn64Short) {
    throw FormatError(formatted("{}: a zip archive allows names of {} bytes, got {}", file_.path(),
                                zip::kIn64Short, name.size()));
  }
  const std::uint32_t crc = crc32(data);
  const bool is_64 = data.size() >= zip64_from_;
  std::string extra;
  if (is_64) append_zip64_field(extra, {data.size(), data.size()});
  const std::uint64_t unpadded =
      file_.position() + zip::kLocalBytes + name.size() + extra.size() + kFieldHeader;
  const auto padding =
      static_cast<std::uint16_t>((kAlignment - unpadded % kAlignment) % kAlignment);
  append_little_endian(extra, kPaddingField);
  append_little_endian(extra, padding);
  extra.append(padding, 'Z');

  records_.push_back({name, file_.position(), data.size(), crc});
  std::string header;
  append_little_endian(header, zip::kLocalSignature);
  append_common(header, is_64, crc, data.size());
  append_little_endian(header, static_cast<std::uint16_t>(name.size()));
  append_little_endian(header, static_cast<std::uint16_t>(extra.size()));
  file_.write(header + name + extra);
  file_.write(data);
}

void ZipWriter::add(const std::string& name, std::string_view data) {
  add(name, std::as_bytes(std::span(data)));
}

void ZipWriter::finish() {
  const std::uint64_t start = file_.position();
  std::string directory;
  for (const Record& record : records_) {
    // One rule for the three numbers keeps the field's layout the same wherever it is there.
    const bool is_64 = std::max(record.bytes, record.offset) >= zip64_from_;
    std::string extra;
    if (is_64) append_zip64_field(extra, {record.bytes, record.bytes, record.offset});
    append_little_endian(directory, zip::kCentralSignature);
    append_little_endian(directory, is_64 ? kVersion64 : kVersion);  // of the writer
    append_common(directory, is_64, record.crc32, record.bytes);
    append_little_endian(directory, static_cast<std::uint16_t>(record.name.size()));
    append_little_endian(directory, static_cast<std::uint16_t>(extra.size()));
    append_little_endian(directory, std::uint16_t{0});  // comment
    append_little_endian(directory, std::uint16_t{0});  // disk
    append_little_endian(directory, std::uint16_t{0});  // internal attributes
    append_little_endian(directory, std::uint32_t{0});  // external attributes
    append_little_endian(directory, is_64 ? zip::kIn64 : static_cast<std::uint32_t>(record.offset));
    directory += record.name + extra;
  }
  const std::uint64_t end = start + directory.size();
  const std::uint64_t count = records_.size();
  const bool is_64 = end >= zip64_from_ || count >= zip::kIn64Short;
  if (is_64) append_end64(directory, count, start, end);
  const auto short_count = is_64 ? zip::kIn64Short : static_cast<std::uint16_t>(count);
  append_little_endian(directory, zip::kEndSignature);
  append_little_endian(directory, std::uint32_t{0});  // disks
  append_little_endian(directory, short_count);
  append_little_endian(directory, short_count);
  append_little_endian(directory, is_64 ? zip::kIn64 : static_cast<std::uint32_t>(end - start));
  append_little_endian(directory, is_64 ? zip::kIn64 : static_cast<std::uint32_t>(start));
  append_little_endian(directory, std::uint16_t{0});  // comment
  file_.write(directory);
}

}  // namespace self_attention::io
