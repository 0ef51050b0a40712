#include "io/tensor_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/bytes.h"
#include "support/pickle_builder.h"

namespace self_attention::io_test {
namespace {

using io::FileFormat;
using pickled::checkpoint;
using pickled::dict;
using pickled::module_archive;
using pickled::ordered_dict;
using pickled::TensorText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string floats(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) bytes += std::string(reinterpret_cast<const char*>(&value), 4);
  return bytes;
}

const std::string kSix = floats({0, 1, 2, 3, 4, 5});

io::TensorIndex index_of(const std::string& bytes, const std::string& key = {}) {
  return io::read_tensor_index(file_of(bytes), key);
}

std::vector<std::string> names(const io::TensorIndex& index) {
  std::vector<std::string> all;
  for (const io::TensorEntry& entry : index.tensors) all.push_back(entry.name);
  return all;
}

std::vector<std::string> others(const io::TensorIndex& index) {
  std::vector<std::string> all;
  for (const io::OtherEntry& entry : index.others) all.push_back(entry.name + ": " + entry.content);
  return all;
}

/// The file that make_fixtures.py wrote.
io::InputFile fixture(const std::string& name) {
  return io::InputFile(std::filesystem::path(__FILE__).parent_path() / "fixtures" / name);
}

/// The values of a float tensor in row-major order, read through its strides.
std::vector<float> values(const io::InputFile& file, const io::TensorIndex& index,
                          const std::string& name) {
  for (const io::TensorEntry& entry : index.tensors) {
    if (entry.name != name) continue;
    const io::TensorStorage& storage = index.storages[entry.storage];
    std::vector<float> data(storage.bytes / sizeof(float));
    io::read_storage(file, storage, std::as_writable_bytes(std::span(data)));
    std::vector<float> result;
    const std::int64_t rows = entry.shape.size() > 1 ? entry.shape[0] : 1;
    const std::int64_t columns = entry.shape.empty() ? 1 : entry.shape.back();
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        std::int64_t place = static_cast<std::int64_t>(entry.storage_offset);
        if (entry.shape.size() > 1) place += i * entry.strides[0];
        if (!entry.shape.empty()) place += j * entry.strides.back();
        result.push_back(data.at(static_cast<std::size_t>(place)));
      }
    }
    return result;
  }
  return {};
}

TEST(TensorIndex, ReadsViewsAsPythonSavedThem) {
  for (const std::string name : {"views.pt", "views_legacy.pt"}) {
    SCOPED_TRACE(name);
    const io::InputFile file = fixture(name);
    const io::TensorIndex index = io::read_tensor_index(file);
    EXPECT_EQ(index.format, name == "views.pt" ? FileFormat::kTorchZip : FileFormat::kTorchLegacy);
    EXPECT_THAT(names(index), ElementsAre("base", "transposed", "row", "scalar"));
    EXPECT_THAT(index.storages, SizeIs(2));
    EXPECT_THAT(values(file, index, "base"), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(values(file, index, "transposed"), ElementsAre(0, 3, 1, 4, 2, 5));
    EXPECT_THAT(values(file, index, "row"), ElementsAre(3, 4, 5));
    EXPECT_EQ(index.tensors[3].type, io::ElementType::kInt64);
    EXPECT_THAT(index.tensors[3].shape, IsEmpty());
  }
}

TEST(TensorIndex, FindsTheNestedStateDict) {
  const io::TensorIndex index = io::read_tensor_index(fixture("nested_legacy.pt"));
  EXPECT_EQ(index.key, "model");
  EXPECT_THAT(names(index), ElementsAre("weight"));
  ASSERT_THAT(index.top_level, SizeIs(4));
  EXPECT_EQ(index.top_level[1].content, "an int");
  EXPECT_EQ(index.top_level[3].content, "the result of calling torch.device");
}

TEST(TensorIndex, ListsUnsupportedTensorsWithoutRefusingTheRest) {
  const io::TensorIndex index = io::read_tensor_index(fixture("unsupported.pt"));
  EXPECT_THAT(names(index), ElementsAre("kept"));
  EXPECT_THAT(others(index),
              ElementsAre("float8: a tensor of torch.float8_e4m3fn, a type that is not supported",
                          "complex: a tensor in torch.ComplexFloatStorage, a type that is not "
                          "supported"));
}

TEST(TensorIndex, ReadsTorchScript) {
  const io::InputFile file = fixture("scripted.pt");
  const io::TensorIndex index = io::read_tensor_index(file);
  EXPECT_EQ(index.format, FileFormat::kTorchScript);
  EXPECT_THAT(names(index), ElementsAre("fc.weight"));
  EXPECT_THAT(values(file, index, "fc.weight"), ElementsAre(1, 2));
  EXPECT_THAT(error_of([&] { io::read_tensor_index(file, "fc"); }),
              HasSubstr("expected no key for a TorchScript archive"));
}

TEST(TensorIndex, ReadsModulesOfModules) {
  const std::string leaf =
      pickled::object("__torch__", "Leaf", {{"weight", TensorText()()}, {"training", "\x88"}});
  const io::TensorIndex index = index_of(module_archive(
      pickled::object(
          "__torch__", "Module",
          {{"first", leaf}, {"second", leaf}, {"bias", TensorText()()}, {"lr", "G12345678"}}),
      {kSix}));
  EXPECT_THAT(names(index), ElementsAre("first.weight", "second.weight", "bias"));
  EXPECT_THAT(index.storages, SizeIs(1));
}

TEST(TensorIndex, TheLastOfEqualKeysCountsAsInPython) {
  const std::string tensor = TensorText()();
  const io::TensorIndex index = index_of(checkpoint(
      dict({{"model", dict({{"first", tensor}})}, {"model", dict({{"last", tensor}})}}), {kSix}));
  EXPECT_THAT(names(index), ElementsAre("last"));
}

TEST(TensorIndex, ReadsStateDictsOfManyShapes) {
  const std::string tensor = TensorText()();
  const std::string parameter =
      pickled::call(pickled::global("torch._utils", "_rebuild_parameter"),
                    std::string("(") + tensor + "\x88" + ordered_dict({}) + "t");
  const std::string buffer = pickled::call(
      pickled::global("torch._tensor", "_rebuild_from_type_v2"),
      pickled::tuple({TensorText().function, pickled::global("torch.nn.parameter", "Buffer"),
                      TensorText().arguments(), "}"}));
  TensorText sized;
  sized.shape = pickled::call(pickled::global("torch", "Size"), sized.shape + "\x85");
  TensorText oldest;
  oldest.function = pickled::global("torch._utils", "_rebuild_tensor");
  const std::string old = pickled::call(
      oldest.function,
      pickled::tuple({oldest.storage(), oldest.offset, oldest.shape, oldest.strides}));
  TensorText cuda;
  cuda.place = pickled::text("cuda:0");
  const io::TensorIndex index = index_of(checkpoint(dict({{"a", tensor},
                                                          {"b", parameter},
                                                          {"c", buffer},
                                                          {"d", sized()},
                                                          {"e", old},
                                                          {"f", cuda()}}),
                                                    {kSix}));
  EXPECT_THAT(names(index), ElementsAre("a", "b", "c", "d", "e", "f"));
  for (const io::TensorEntry& entry : index.tensors) {
    EXPECT_THAT(entry.shape, ElementsAre(2, 3)) << entry.name;
    EXPECT_EQ(entry.type, io::ElementType::kFloat32) << entry.name;
  }
}

TEST(TensorIndex, ReadsAnExpandedTensorLargerThanItsFile) {
  TensorText expanded;
  expanded.shape = std::string("(") + pickled::long_integer(1LL << 40) + "t";
  expanded.strides = pickled::integers({0});
  const io::TensorIndex index = index_of(checkpoint(dict({{"w", expanded()}}), {kSix}));
  EXPECT_THAT(index.tensors.at(0).shape, ElementsAre(1LL << 40));
  EXPECT_EQ(index.storages.at(0).bytes, 24U);
}

TEST(TensorIndex, PicksTheDictThatIsAskedFor) {
  const std::string tensor = TensorText()();
  const std::string bytes = checkpoint(
      dict({{"model", dict({{"a", tensor}})},
            {"ema", dict({{"deep", dict({{"b", tensor}})}, {"deep.er", dict({{"c", tensor}})}})},
            {"scale", tensor}}),
      {kSix});
  EXPECT_THAT(names(index_of(bytes)), ElementsAre("a"));
  EXPECT_THAT(names(index_of(bytes, "ema.deep")), ElementsAre("b"));
  EXPECT_THAT(names(index_of(bytes, "ema.deep.er")), ElementsAre("c"));
  EXPECT_THAT(error_of([&] { index_of(bytes, "ema.deeper"); }),
              HasSubstr("expected a dict of tensors called \"ema.deeper\", found none; name the "
                        "dict to read; the keys are: \"deep\" (a dict of tensors), \"deep.er\" (a "
                        "dict of tensors)"));
  EXPECT_THAT(error_of([&] { index_of(bytes, "scale"); }),
              HasSubstr("found the result of calling torch._utils._rebuild_tensor_v2"));
}

TEST(TensorIndex, ReadsNoStateDictAtAll) {
  EXPECT_THAT(index_of(checkpoint(ordered_dict({}), {})).tensors, IsEmpty());
}

TEST(TensorIndex, KeepsValuesThatAreNoTensorsByName) {
  const io::TensorIndex index = index_of(checkpoint(
      dict({{"w", TensorText()()}, {"extra_state", "N"}, {"array", "cnumpy\nndarray\n)\x81"}}) +
          "K\7Ns",
      {kSix}));
  EXPECT_THAT(names(index), ElementsAre("w"));
  EXPECT_THAT(others(index),
              ElementsAre("extra_state: None", "array: an object of class numpy.ndarray",
                          "7: an entry whose name is no str"));
}

TEST(TensorIndex, KeepsTensorsOfOtherKindsByName) {
  const std::string view = pickled::tuple({TensorText().storage_class, "N"});
  const std::string subclass =
      pickled::call(pickled::global("torch._tensor", "_rebuild_from_type_v2"),
                    pickled::tuple({TensorText().function, pickled::global("my", "Quantized"),
                                    TensorText().arguments(), "}"}));
  const io::TensorIndex index = index_of(checkpoint(
      dict({{"negated", TensorText{.more = dict({{"neg", "\x88"}})}()},
            {"view", TensorText{.count = pickled::integer(6) + view}()},
            {"subclass", subclass},
            {"sparse",
             TensorText{.function = pickled::global("torch._utils", "_rebuild_sparse_tensor")}()}}),
      {kSix}));
  EXPECT_THAT(names(index), IsEmpty());
  EXPECT_THAT(others(index),
              ElementsAre("negated: a tensor with a conjugate or negative bit",
                          "view: a tensor whose storage is a view of another",
                          "subclass: the result of calling torch._tensor._rebuild_from_type_v2",
                          "sparse: the result of calling torch._utils._rebuild_sparse_tensor"));
}

TEST(TensorIndex, ReadsUntypedStorages) {
  const TensorText untyped{.storage_class = pickled::global("torch.storage", "UntypedStorage"),
                           .count = pickled::integer(24),
                           .more = pickled::global("torch", "float32"),
                           .function = pickled::global("torch._utils", "_rebuild_tensor_v3")};
  const io::TensorIndex index = index_of(checkpoint(dict({{"w", untyped()}}), {kSix}));
  EXPECT_EQ(index.tensors.at(0).type, io::ElementType::kFloat32);
}

TEST(TensorIndex, ReadsSafetensors) {
  const std::string json =
      R"({"__metadata__":{"k":"v"},"f8":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[24,28]},)"
      R"("w":{"dtype":"F32","shape":[2,0,3],"data_offsets":[24,24]},)"
      R"("v":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  const std::string bytes = number<std::uint64_t>(json.size()) + json + kSix + "four";
  const io::InputFile file = file_of(bytes);
  const io::TensorIndex index = io::read_tensor_index(file);
  EXPECT_EQ(io::format_name(index.format), "safetensors");
  EXPECT_THAT(index.metadata, ElementsAre(std::pair("k", "v")));
  EXPECT_THAT(names(index), ElementsAre("v", "w"));
  EXPECT_THAT(others(index),
              ElementsAre("f8: a tensor of dtype \"F8_E5M2\", which is not supported"));
  EXPECT_THAT(values(file, index, "v"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(index.tensors[1].strides, ElementsAre(3, 3, 1));
  EXPECT_THAT(error_of([&] { io::read_tensor_index(file, "model"); }),
              HasSubstr("expected no key for safetensors"));
}

TEST(TensorIndex, ReadsContainersOfCppPickles) {
  const std::string body =
      pickled::call(pickled::global("torch.jit._pickle", "restore_type_tag"),
                    dict({{"a", TensorText()()}}) + pickled::text("Dict[str, Tensor]") + "\x86");
  EXPECT_THAT(names(index_of(checkpoint(body, {kSix}))), ElementsAre("a"));
}

TEST(TensorIndex, RefusesEveryTruncation) {
  const std::string body = dict({{"w", TensorText()()}});
  const std::vector<std::string> files = {
      checkpoint(body, {kSix}), pickled::legacy(body, {"0"}, number<std::int64_t>(6) + kSix)};
  for (const std::string& whole : files) {
    EXPECT_THAT(names(index_of(whole)), ElementsAre("w"));
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_THAT(error_of([&] { index_of(whole.substr(0, length)); }), HasSubstr("test.file: "))
          << length << " of " << whole.size() << " bytes";
    }
  }
}

TEST(TensorIndex, TellsFormatsFromBytes) {
  EXPECT_EQ(io::detect_format(file_of(checkpoint("}", {}))), FileFormat::kTorchZip);
  EXPECT_EQ(io::detect_format(file_of(module_archive("}", {}))), FileFormat::kTorchScript);
  EXPECT_EQ(io::detect_format(file_of(pickled::legacy("}", {}, ""))), FileFormat::kTorchLegacy);
  EXPECT_EQ(io::detect_format(file_of(number<std::uint64_t>(2) + "{}")), FileFormat::kSafetensors);
}

TEST(TensorIndex, VerifiesChecksumsWhenAStorageIsRead) {
  std::string bytes = checkpoint(dict({{"w", TensorText()()}}), {kSix});
  bytes[bytes.find(kSix) + 5] ^= 1;
  const io::InputFile file = file_of(bytes);
  const io::TensorIndex index = io::read_tensor_index(file);
  EXPECT_THAT(error_of([&] { values(file, index, "w"); }),
              HasSubstr("test.file: data/0: expected checksum"));
}

}  // namespace
}  // namespace self_attention::io_test
