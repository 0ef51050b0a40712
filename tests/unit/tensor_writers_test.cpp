#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "io/safetensors_writer.h"
#include "io/tensor_index.h"
#include "io/torch_writer.h"
#include "support/bytes.h"
#include "support/temporary_folder.h"

namespace self_attention::io_test {
namespace {

using io::ElementType;
using io::TensorDescription;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::vector<TensorDescription> kTensors = {
    {"layer.bias", ElementType::kFloat16, {3}},
    {"layer.weight", ElementType::kFloat32, {3, 2}},
    {"scalar", ElementType::kInt64, {}},
    {"empty", ElementType::kFloat64, {0, 5}},
    {"mask", ElementType::kBool, {7}},
    {"\"quoted\"\\ µ", ElementType::kBFloat16, {1, 1, 1}},
    {"bytes", ElementType::kUInt8, {2}},
    {"small", ElementType::kInt8, {2}},
    {"short", ElementType::kInt16, {2}},
    {"int", ElementType::kInt32, {2}},
};

/// Bytes that differ from tensor to tensor.
std::string content(std::size_t index) {
  std::size_t count = io::element_size(kTensors[index].type);
  for (const std::int64_t d : kTensors[index].shape) count *= static_cast<std::size_t>(d);
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(17 * index + i);
  return bytes;
}

class TensorWriters : public ::testing::TestWithParam<std::string> {
 protected:
  void write(const std::vector<TensorDescription>& tensors) {
    io::OutputFile file(path_);
    std::string buffer;
    const auto bytes_of = [&](std::size_t i) {
      buffer = content(i);
      return std::as_bytes(std::span(buffer));
    };
    if (GetParam() == "safetensors") {
      io::write_safetensors(file, tensors, {{"format", "pt"}}, bytes_of);
    } else {
      io::write_torch_zip(file, tensors, bytes_of);
    }
    file.commit();
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.path() / "file";
};

TEST_P(TensorWriters, WriteWhatTheReaderReads) {
  write(kTensors);
  const io::InputFile file(path_);
  const io::TensorIndex index = io::read_tensor_index(file);
  ASSERT_EQ(index.tensors.size(), kTensors.size());
  std::map<std::string, const io::TensorEntry*> found;
  for (const io::TensorEntry& entry : index.tensors) found[entry.name] = &entry;
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    SCOPED_TRACE(kTensors[i].name);
    ASSERT_EQ(found.count(kTensors[i].name), 1U);
    const io::TensorEntry& entry = *found[kTensors[i].name];
    EXPECT_EQ(entry.type, kTensors[i].type);
    EXPECT_EQ(entry.shape, kTensors[i].shape);
    EXPECT_EQ(entry.storage_offset, 0U);
    const io::TensorStorage& storage = index.storages[entry.storage];
    std::string bytes(storage.bytes, '?');
    io::read_storage(file, storage, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, content(i));
    EXPECT_EQ(storage.offset % io::element_size(entry.type), 0U);
  }
}

TEST_P(TensorWriters, WriteNoTensors) {
  write({});
  EXPECT_TRUE(io::read_tensor_index(io::InputFile(path_)).tensors.empty());
}

TEST_P(TensorWriters, WriteTheSameBytesAgain) {
  const auto read = [&] {
    std::ostringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    return bytes.str();
  };
  write(kTensors);
  const std::string first = read();
  write(kTensors);
  EXPECT_EQ(read(), first);
}

TEST_P(TensorWriters, RefuseNamesThatDoNotTell) {
  const TensorDescription a = {"a", ElementType::kUInt8, {2}};
  EXPECT_THAT(error_of([&] { write({a, a}); }), HasSubstr(R"(different names, got "a" twice)"));
  EXPECT_THAT(error_of([&] {
                write({{"\xff", ElementType::kUInt8, {2}}});
              }),
              HasSubstr(R"(expected names in UTF-8, got "\xff")"));
  EXPECT_THAT(error_of([&] {
                write({{"a", ElementType::kUInt8, {1LL << 40, 1LL << 40}}});
              }),
              HasSubstr("exceeds 64 bits"));
  EXPECT_THAT(error_of([&] {
                write({{"a", ElementType::kUInt8, {2, -1}}});
              }),
              HasSubstr("shape (2, -1) exceeds 64 bits"));
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_P(TensorWriters, NoticeBytesOfTheWrongLength) {
  EXPECT_THROW(write({{"a", ElementType::kUInt8, {99}}}), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Formats, TensorWriters, ::testing::Values("safetensors", "torch"),
                         [](const auto& row) { return row.param; });

TEST(SafetensorsWriter, WritesMetadataAndAlignsTheData) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "file";
  io::OutputFile file(path);
  io::write_safetensors(file, {}, {{"b", "\"2\""}, {"a", "1"}}, {});
  EXPECT_EQ(file.position() % 8, 0U);
  file.commit();
  EXPECT_THAT(io::read_tensor_index(io::InputFile(path)).metadata,
              UnorderedElementsAre(std::pair("a", "1"), std::pair("b", "\"2\"")));
}

TEST(SafetensorsWriter, RefusesTheReservedName) {
  const TemporaryFolder folder;
  io::OutputFile file(folder.path() / "file");
  const std::vector<TensorDescription> tensors = {{"__metadata__", ElementType::kUInt8, {0}}};
  EXPECT_THAT(error_of([&] { io::write_safetensors(file, tensors, {}, {}); }),
              HasSubstr("keeps the name __metadata__ for itself"));
  EXPECT_THAT(error_of([&] {
                io::write_safetensors(file, {}, {{"a", "\xff"}}, {});
              }),
              HasSubstr("expected metadata in UTF-8"));
}

}  // namespace
}  // namespace self_attention::io_test
