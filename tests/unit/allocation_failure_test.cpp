// Readers and writers of files where memory runs out: an exception, no leak, and no half of a file.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/output_file.h"
#include "io/safetensors_writer.h"
#include "io/tensor_index.h"
#include "io/torch_writer.h"
#include "support/failing_allocations.h"
#include "support/temporary_folder.h"

namespace self_attention::io_test {
namespace {

namespace fs = std::filesystem;
using testing::fail_each_allocation;
using testing::Failing;

std::size_t open_files() { return entries("/proc/self/fd"); }

/// What is in a file: its names and its tensors' bytes.
std::vector<std::string> contents(const fs::path& path) {
  const io::InputFile file(path);
  const io::TensorIndex index = io::read_tensor_index(file);
  std::vector<std::string> all;
  for (const io::TensorEntry& entry : index.tensors) {
    const io::TensorStorage& storage = index.storages[entry.storage];
    all.push_back(entry.name);
    all.emplace_back(storage.bytes, '?');
    io::read_storage(file, storage, std::as_writable_bytes(std::span(all.back())));
  }
  for (const io::OtherEntry& entry : index.others) all.push_back(entry.name + entry.content);
  return all;
}

struct Row {
  const char* name;
  const char* file;
};

class ReadersWithoutMemory : public ::testing::TestWithParam<Row> {};

TEST_P(ReadersWithoutMemory, ThrowAndReadRightNextTime) {
  const fs::path path = fs::path(__FILE__).parent_path() / GetParam().file;
  const std::vector<std::string> expected = contents(path);
  const std::size_t descriptors = open_files();
  for (const Failing which : {Failing::kOne, Failing::kAllFromThere}) {
    std::vector<std::string> found;
    const std::size_t allocations = fail_each_allocation(
        which, [&] { found = contents(path); },
        [&](const std::string& what) { EXPECT_EQ(open_files(), descriptors) << what; });
    EXPECT_GT(allocations, 10U);
    EXPECT_EQ(found, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ReadersWithoutMemory,
                         ::testing::Values(Row{"Zip", "fixtures/views.pt"},
                                           Row{"Legacy", "fixtures/views_legacy.pt"},
                                           Row{"NestedLegacy", "fixtures/nested_legacy.pt"},
                                           Row{"TorchScript", "fixtures/scripted.pt"},
                                           Row{"Unsupported", "fixtures/unsupported.pt"},
                                           Row{"Safetensors", "../fuzz/corpus/safetensors/two"}),
                         [](const auto& info) { return std::string(info.param.name); });

class WritersWithoutMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(WritersWithoutMemory, LeaveTheOlderFileOrTheWholeNewOne) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a long name that does not fit a small string" / "file";
  fs::create_directory(path.parent_path());
  const std::vector<io::TensorDescription> tensors = {
      {"layer.with.a.long.name.weight", io::ElementType::kFloat32, {3, 2}},
      {"layer.with.a.long.name.bias", io::ElementType::kFloat16, {3}}};
  const auto write = [&](char fill) {
    io::OutputFile file(path);
    const std::vector<std::byte> bytes(24, static_cast<std::byte>(fill));
    const io::TensorBytes bytes_of = [&](std::size_t i) {
      return std::span(bytes).first(i == 0 ? 24 : 6);
    };
    if (std::string(GetParam()) == "Safetensors") {
      io::write_safetensors(file, tensors, {{"format", "pt"}}, bytes_of);
    } else {
      io::write_torch_zip(file, tensors, bytes_of);
    }
    file.commit();
  };
  write('b');
  const std::vector<std::string> newer = contents(path);
  write('a');
  const std::vector<std::string> older = contents(path);
  const std::size_t descriptors = open_files();
  for (const Failing which : {Failing::kOne, Failing::kAllFromThere}) {
    write('a');
    const std::size_t allocations = fail_each_allocation(
        which, [&] { write('b'); },
        [&](const std::string& what) {
          const std::vector<std::string> found = contents(path);
          EXPECT_TRUE(found == older || found == newer) << what;
          EXPECT_EQ(entries(path.parent_path()), 1U) << what;
          EXPECT_EQ(open_files(), descriptors) << what;
        });
    EXPECT_GT(allocations, 10U);
    EXPECT_EQ(contents(path), newer);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WritersWithoutMemory, ::testing::Values("Safetensors", "Torch"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace self_attention::io_test
