#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "io/zip_reader.h"
#include "io/zip_writer.h"
#include "support/bytes.h"
#include "support/temporary_folder.h"
#include "support/zip_builder.h"

namespace self_attention::io_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string read_entry(const io::InputFile& file, const std::string& name) {
  const io::ZipDirectory directory = io::read_zip_directory(file);
  const io::ZipEntry* entry = directory.find(name);
  if (entry == nullptr) return "no such entry";
  const std::vector<std::byte> bytes = io::read_zip_entry(file, *entry);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ZipReader, ReadsStoredEntries) {
  const io::InputFile file = file_of(build_zip({{.name = "b/two", .data = "22"}, {.name = "a"}}));
  EXPECT_EQ(read_entry(file, "b/two"), "22");
  EXPECT_EQ(read_entry(file, "a"), "");
  EXPECT_EQ(read_entry(file, "b"), "no such entry");
}

TEST(ZipReader, ReadsZip64NumbersDescriptorsAndComments) {
  const std::vector<BuiltEntry> entries = {{.name = "a", .data = "one", .zip64 = true},
                                           {.name = "b", .data = "two", .flags = 8},
                                           {.name = "c", .data = "three"}};
  for (const bool zip64 : {false, true}) {
    const io::InputFile file =
        file_of(build_zip(entries, {.zip64 = zip64, .comment = "PK\5\6 is no end record"}));
    EXPECT_EQ(read_entry(file, "a"), "one");
    EXPECT_EQ(read_entry(file, "b"), "two");
    EXPECT_EQ(read_entry(file, "c"), "three");
  }
}

TEST(ZipReader, ListsCompressedEntriesButDoesNotReadThem) {
  const io::InputFile file = file_of(
      build_zip({{.name = "code.py", .data = "xx", .method = 8, .flags = 8, .real_change = 100},
                 {.name = "a"}}));
  EXPECT_EQ(read_entry(file, "a"), "");
  EXPECT_THAT(error_of([&] { read_entry(file, "code.py"); }),
              HasSubstr(R"(entry "code.py": expected it stored)"));
}

TEST(ZipReader, VerifiesChecksums) {
  std::string bytes = build_zip({{.name = "a", .data = "content"}});
  bytes[bytes.find("content")] = 'C';
  const io::InputFile file = file_of(bytes);
  EXPECT_THAT(error_of([&] { read_entry(file, "a"); }),
              AllOf(HasSubstr(R"(test.file: entry "a": expected checksum)"),
                    HasSubstr("the file is altered")));
}

TEST(ZipReader, VerifiesWhatSeveralThreadsRead) {
  // Three pieces and a bit of 32 MiB.
  std::string data((std::size_t{100} << 20) + 1, '\0');
  for (std::size_t i = 0; i < data.size(); i += 4099) data[i] = static_cast<char>(i >> 12);
  const io::InputFile file = file_of(build_zip({{.name = "a", .data = data}}));
  EXPECT_TRUE(read_entry(file, "a") == data);
}

TEST(ZipReader, RefusesEveryTruncation) {
  const std::string whole =
      build_zip({{.name = "a", .data = "content"}, {.name = "b"}}, {.zip64 = true});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const io::InputFile file = file_of(whole.substr(0, length));
    EXPECT_THAT(error_of([&] { io::read_zip_directory(file); }), HasSubstr("test.file: zip"))
        << length << " bytes";
  }
}

std::string bytes_of(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

TEST(ZipWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  // With a low limit the archive uses ZIP64 records throughout.
  for (const std::uint64_t zip64_from : {std::uint64_t{0xffffffff}, std::uint64_t{0}}) {
    const std::string path = folder.path() / "archive.zip";
    io::OutputFile out(path);
    io::ZipWriter zip(out, zip64_from);
    zip.add("root/a", "content");
    zip.add("root/empty", "");
    zip.add("root/" + std::string(1000, 'n'), std::string(5000, 'x'));
    zip.finish();
    out.commit();
    const io::InputFile file(path);
    EXPECT_EQ(read_entry(file, "root/a"), "content");
    EXPECT_EQ(read_entry(file, "root/empty"), "");
    EXPECT_EQ(read_entry(file, "root/" + std::string(1000, 'n')), std::string(5000, 'x'));
    for (const io::ZipEntry& entry : io::read_zip_directory(file).entries) {
      EXPECT_EQ(entry.offset % 64, 0U) << entry.name;
    }
  }
}

TEST(ZipWriter, CountsBeyond16Bits) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "archive.zip";
  // The first number is the one that says to look in the ZIP64 records.
  for (const std::size_t entries : {65'535, 65'536}) {
    io::OutputFile out(path);
    io::ZipWriter zip(out);
    for (std::size_t i = 0; i < entries; ++i) zip.add(std::to_string(i), "");
    zip.finish();
    out.commit();
    EXPECT_EQ(io::read_zip_directory(io::InputFile(path)).entries.size(), entries);
    EXPECT_THAT(bytes_of(path), HasSubstr("PK\6\7")) << entries;
  }
}

TEST(ZipWriter, GivesPlacesBeyondTheLimitTheirOwnField) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "archive.zip";
  io::OutputFile out(path);
  io::ZipWriter zip(out, /*zip64_from=*/60);
  zip.add("a", "short");
  zip.add("b", "short");
  zip.finish();
  out.commit();
  const std::string bytes = bytes_of(path);
  const std::size_t first = bytes.find("PK\1\2");
  const std::size_t second = bytes.find("PK\1\2", first + 1);
  constexpr std::size_t kPlace = 42;
  EXPECT_EQ(bytes.substr(first + kPlace, 4), std::string(4, '\0'));
  EXPECT_EQ(bytes.substr(second + kPlace, 4), "\xff\xff\xff\xff");
  EXPECT_EQ(read_entry(io::InputFile(path), "b"), "short");
}

class MalformedZip : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedZip, IsRefusedWithItsOwnMessage) {
  const io::InputFile file = file_of(GetParam().bytes);
  EXPECT_THAT(error_of([&] { io::read_zip_directory(file); }),
              AllOf(HasSubstr("test.file: zip archive: "), HasSubstr(GetParam().message)));
}

const std::vector<BuiltEntry> kTwo = {{.name = "a", .data = "aaaa"}, {.name = "b", .data = "bb"}};

std::vector<BuiltEntry> with(const BuiltEntry& changed) { return {changed, kTwo[1]}; }

/// The archive with `count` bytes at the last occurrence of `signature` replaced.
std::string patched(std::string bytes, const std::string& signature, std::size_t offset,
                    const std::string& value) {
  return bytes.replace(bytes.rfind(signature) + offset, value.size(), value);
}

/// An archive in the data of "a", with an entry of the outer one pointing into it.
std::string nested() {
  const std::string inner = build_zip({{.name = "b", .data = "inner"}});
  return build_zip(
      {{.name = "a", .data = inner},
       {.name = "b", .data = "inner", .offset_change = -static_cast<std::int64_t>(inner.size())}});
}

INSTANTIATE_TEST_SUITE_P(
    Files, MalformedZip,
    ::testing::Values(
        Malformed{"OnlyALocalHeader", "PK\3\4" + std::string(60, '\0'),
                  "expected a directory at the end, found none: the file is truncated"},
        Malformed{"BytesAfterTheEnd", build_zip(kTwo) + "x", "expected a directory at the end"},
        Malformed{"CommentLongerThanTheFile",
                  patched(build_zip(kTwo), "PK\5\6", 20, "\x09" + std::string(1, '\0')),
                  "expected a directory at the end"},
        Malformed{"SeveralDisks", build_zip(kTwo, {.disk = 3}),
                  "expected one disk, found part 3 of several"},
        Malformed{"OneEntryTooMany", build_zip(kTwo, {.count_change = 1}),
                  "3 entries do not fit a directory of 94 bytes"},
        Malformed{"OneEntryTooFew", build_zip(kTwo, {.count_change = -1}),
                  "expected 1 entries in the directory, found 47 bytes after them"},
        Malformed{"RecordIsSomethingElse", patched(build_zip(kTwo), "PK\1\2", 0, "XX"),
                  "expected record 1 of the directory, found something else"},
        Malformed{"DirectoryElsewhere", build_zip(kTwo, {.end_change = -1}),
                  "expected the directory to end at byte"},
        Malformed{"DirectoryBeyondTheFile", build_zip(kTwo, {.end_change = 1 << 30}),
                  "found 94 bytes from 1073741892"},
        Malformed{"GapBehindTheDirectory", build_zip(kTwo, {.before_end = "gap"}),
                  "expected the directory to end at byte"},
        Malformed{"Zip64EndRecordElsewhere",
                  build_zip(kTwo, {.zip64 = true, .locator_change = 1 << 20}),
                  "expected the ZIP64 end record just before byte"},
        Malformed{"Zip64EndRecordAtTheEndOf64Bits",
                  build_zip(kTwo, {.zip64 = true, .locator_change = -(1 << 20)}),
                  "expected the ZIP64 end record just before byte"},
        Malformed{"Zip64EndRecordIsSomethingElse",
                  build_zip(kTwo, {.zip64 = true, .end64_signature = 7}),
                  "expected a ZIP64 end record at byte"},
        Malformed{"EndRecordsContradict",
                  patched(build_zip(kTwo, {.zip64 = true}), "PK\5\6", 10, "\x07"),
                  "the end record and the ZIP64 end record contradict each other"},
        Malformed{"RecordLeavesTheDirectory",
                  patched(build_zip(kTwo), "PK\1\2", 28, std::string(1, '\x7f')),
                  "record 1 of the directory leaves the directory"},
        Malformed{"NameTwice", build_zip({kTwo[0], kTwo[0]}), R"(entry "a" occurs twice)"},
        Malformed{"EntryBeforeTheFile", build_zip({{.name = "a", .offset_change = -2}}),
                  R"(entry "a" starts at byte 4294967294, outside of the data)"},
        Malformed{"EntryInTheDirectory", build_zip({{.name = "a", .offset_change = 31}}),
                  R"(entry "a" starts at byte 31, outside of the data)"},
        Malformed{"EntryWithoutHeader", build_zip({kTwo[0], {.name = "b", .offset_change = -1}}),
                  R"(entry "b" has no header at byte)"},
        Malformed{"EntriesOverlap", nested(), R"(entry "b" overlaps entry "a")"},
        Malformed{
            "EntryReachesIntoTheNext",
            build_zip({{.name = "a", .local_change = 2, .central_change = 2, .real_change = 2},
                       {.name = "b"}}),
            R"(entry "b" overlaps entry "a")"},
        Malformed{"SameBytesTwice",
                  build_zip({{.name = "a", .data = "aaaa"},
                             {.name = "a", .data = "aaaa", .offset_change = -35}}),
                  R"(entry "a" overlaps entry "a")"},
        Malformed{"LargerThanTheFile",
                  build_zip({{.name = "a", .central_change = 99, .real_change = 99}}),
                  R"(entry "a" expected 99 bytes of data from byte 31, the data end at 31)"},
        Malformed{"StoredWithTwoSizes", build_zip(with({.name = "a", .real_change = 9})),
                  R"(entry "a" is stored as 0 bytes, but holds 9)"},
        Malformed{"HeadersDifferInName", build_zip(with({.name = "a", .local_name = "z\n"})),
                  R"(entry "a" is called "z\x0a" in its own header)"},
        Malformed{"HeadersDifferInSize", build_zip(with({.name = "a", .local_change = 1})),
                  R"(entry "a" its own header and the directory contradict each other)"},
        Malformed{"HeadersDifferInMethod",
                  patched(build_zip(with({.name = "a"})), "PK\3\4", 8, "\x08"),
                  R"(entry "b" its own header and the directory contradict each other)"},
        Malformed{"LocalNameLeavesTheData",
                  patched(build_zip({{.name = "a"}}), "PK\3\4", 26, "\x7f"),
                  R"(entry "a" expected 0 bytes of data from byte 157)"},
        Malformed{
            "Zip64FieldIsMissing",
            build_zip({{.name = "a", .central_change = 0xffffffff, .real_change = 0xffffffff}}),
            R"(entry "a" announces ZIP64 numbers that its extra field does not hold)"},
        Malformed{"Zip64FieldIsTooShort",
                  build_zip({{.name = "a",
                              .central_change = 0xffffffff,
                              .real_change = 0xffffffff,
                              .central_extra = std::string("\1\0\x08\0", 4) + number(1ULL)}}),
                  R"(entry "a" announces ZIP64 numbers)"},
        Malformed{"Zip64SizeOf2To64",
                  build_zip({{.name = "a",
                              .central_change = 0xffffffff,
                              .real_change = 0xffffffff,
                              .central_extra = std::string("\1\0\x10\0", 4) + number(~0ULL) +
                                               number(~0ULL)}}),
                  R"(entry "a" expected 18446744073709551615 bytes of data)"}),
    row_name<::testing::TestParamInfo<Malformed>>);

}  // namespace
}  // namespace self_attention::io_test
