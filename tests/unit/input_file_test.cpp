#include "io/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

#include "support/bytes.h"
#include "support/temporary_folder.h"

namespace self_attention::io_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class InputFileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& content) {
    std::ofstream(folder_ / "data.bin", std::ios::binary) << content;
    return folder_ / "data.bin";
  }
  static std::string read(const io::InputFile& file, std::uint64_t offset, std::size_t count) {
    std::string text(count, '?');
    file.read(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(InputFileTest, ReadsRangesOfAFile) {
  const io::InputFile file(write("0123456789"));
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(read(file, 0, 10), "0123456789");
  EXPECT_EQ(read(file, 7, 3), "789");
  EXPECT_EQ(read(file, 10, 0), "");
}

TEST_F(InputFileTest, ReadsRangesOfMemory) {
  const io::InputFile file = file_of("0123456789");
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(file.path(), "test.file");
  EXPECT_EQ(read(file, 7, 3), "789");
  EXPECT_THAT(error_of([&] { read(file, 7, 4); }), HasSubstr("expected 4 bytes at offset 7"));
}

TEST_F(InputFileTest, RefusesRangesBeyondTheEnd) {
  const io::InputFile file(write("0123456789"));
  EXPECT_THAT(error_of([&] { read(file, 8, 3); }),
              AllOf(HasSubstr("data.bin"), HasSubstr("expected 3 bytes at offset 8"),
                    HasSubstr("the file has only 10")));
  EXPECT_THAT(error_of([&] { read(file, ~std::uint64_t{0}, 2); }), HasSubstr("expected 2 bytes"));
}

TEST_F(InputFileTest, ReportsAFileThatShrinks) {
  const std::string path = write("0123456789");
  const io::InputFile file(path);
  std::filesystem::resize_file(path, 4);
  EXPECT_THAT(error_of([&] { read(file, 2, 5); }), HasSubstr("has become shorter"));
}

TEST_F(InputFileTest, RefusesWhatIsNotARegularFile) {
  EXPECT_THAT(error_of([&] { io::InputFile file(folder_ / "absent"); }),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(error_of([&] { io::InputFile file(folder_); }), HasSubstr("found a directory"));
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { io::InputFile file(fifo); }), HasSubstr("expected a regular file"));
}

TEST_F(InputFileTest, MovesItsDescriptor) {
  io::InputFile first(write("0123456789"));
  io::InputFile second(std::move(first));
  EXPECT_EQ(read(second, 0, 3), "012");
  io::InputFile third = file_of("abc");
  third = std::move(second);
  EXPECT_EQ(read(third, 0, 3), "012");
}

}  // namespace
}  // namespace self_attention::io_test
