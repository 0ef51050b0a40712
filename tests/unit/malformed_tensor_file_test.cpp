#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/tensor_index.h"
#include "support/bytes.h"
#include "support/pickle_builder.h"

namespace self_attention::io_test {
namespace {

using pickled::checkpoint;
using pickled::dict;
using pickled::module_archive;
using pickled::ordered_dict;
using pickled::TensorText;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kSix(6 * sizeof(float), 'x');

class MalformedTensorFile : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedTensorFile, IsRefusedWithItsOwnMessage) {
  EXPECT_THAT(error_of([&] { io::read_tensor_index(file_of(GetParam().bytes)); }),
              AllOf(HasSubstr("test.file: "), HasSubstr(GetParam().message)));
}

/// A checkpoint of that tensor.
std::string one(const TensorText& tensor) { return checkpoint(dict({{"w", tensor()}}), {kSix}); }

std::string shared_modules() {
  // Each module holds the one before it ten times: ten to the twentieth paths from the last.
  std::string body =
      std::string("(c__torch__\nModule\n)\x81}") + pickled::text("w") + TensorText()() + "sbq\x01";
  for (int level = 0; level < 20; ++level) {
    body += "c__torch__\nModule\n)\x81}(";
    for (char child = 'a'; child < 'k'; ++child) {
      body += pickled::text(std::string(1, child)) + "h\x01";
    }
    body += "ubq\x01";
  }
  return module_archive(body + "1h\x01", {kSix});
}

std::string shared_tensor() {
  // One tensor of 64 dimensions under many names.
  TensorText wide;
  wide.shape = wide.strides = pickled::integers(std::vector<std::int32_t>(64, 1));
  std::string body = wide() + "q\x01" + "0}(";
  for (int i = 0; i < 100'000; ++i) body += pickled::text(std::to_string(i)) + "h\x01";
  return checkpoint(body + "u", {kSix});
}

std::string module_in_itself() {
  return module_archive(
      std::string("c__torch__\nModule\n)\x81q\x01}") + pickled::text("me") + "h\x01sb", {});
}

INSTANTIATE_TEST_SUITE_P(
    Containers, MalformedTensorFile,
    ::testing::Values(
        Malformed{"Empty", "", "found an empty file"},
        Malformed{"GitLfsPointer", "version https://git-lfs.github.com/spec/v1\n",
                  "found a Git LFS pointer: fetch the file itself with git lfs pull"},
        Malformed{"WebPage", "<!DOCTYPE html>", "found a web page or XML"},
        Malformed{"Gzip", "\x1f\x8b\x08", "found gzip: unpack it first"},
        Malformed{"OldTar", std::string(257, 'x') + "ustar" + std::string(300, '\0'),
                  "found a tar archive"},
        Malformed{"PlainPickle", "\x80\x04N.", "found a Python pickle that torch.save did not"},
        Malformed{"Noise", std::string(100, 'x'), "found something else"},
        Malformed{"ZipOfSomethingElse", build_zip({{.name = "a.npy"}}),
                  "found a zip without */data.pkl"},
        Malformed{"BigEndian", checkpoint("}", {}, {{.name = "archive/byteorder", .data = "big"}}),
                  "expected byte order little, found another"},
        Malformed{"ByteOrderOfManyBytes",
                  checkpoint("}", {}, {{.name = "archive/byteorder", .data = "middle"}}),
                  "expected byte order little, found another"},
        Malformed{"CompressedPickle",
                  build_zip({{.name = "a/data.pkl", .data = "x", .method = 8, .flags = 8}}),
                  R"(entry "a/data.pkl": expected it stored)"},
        Malformed{"AlteredPickle",
                  build_zip({{.name = "a/data.pkl", .data = "\x80\x02}.", .crc_change = 1}}),
                  R"(entry "a/data.pkl": expected checksum)"},
        Malformed{"BytesAfterThePickle", build_zip({{.name = "a/data.pkl", .data = "\x80\x02}.}"}}),
                  "expected the pickle to fill its 5 bytes, found its end at 4"},
        Malformed{"OneTensor", checkpoint(TensorText()(), {kSix}),
                  "expected a state dict, found the result of calling"},
        Malformed{"WholeModel", checkpoint("cmy.net\nModel\n)\x81}b", {}),
                  "found an object of class my.net.Model: in Python, save one with"},
        Malformed{"NoTensors", checkpoint(dict({{"epoch", "K\3"}, {"net", "}"}}), {}),
                  R"(the keys are: "epoch" (an int), "net" (a dict))"},
        Malformed{"TwoStateDicts",
                  checkpoint(dict({{"model", dict({{"w", TensorText()()}})},
                                   {"state_dict", dict({{"w", TensorText()()}})}}),
                             {kSix}),
                  "more than one state dict: name one of state_dict, model"},
        Malformed{"NameTwice",
                  checkpoint(dict({{"w", TensorText()()}, {"w", TensorText()()}}), {kSix}),
                  R"(expected names that differ, found "w" twice)"},
        Malformed{"TorchScriptOfADict", module_archive("}", {}),
                  "expected a module in the TorchScript archive, found a dict"},
        Malformed{"ModuleInItself", module_in_itself(), "modules nest deeper than 100"},
        Malformed{"ModulesSharedTenfold", shared_modules(),
                  "its pickle describes more than a file of"},
        Malformed{"TensorSharedByAll", shared_tensor(),
                  "its pickle describes more than a file of"}),
    row_name<::testing::TestParamInfo<Malformed>>);

INSTANTIATE_TEST_SUITE_P(
    Tensors, MalformedTensorFile,
    ::testing::Values(
        Malformed{"StorageIsMissing", one({.key = pickled::text("7")}),
                  R"(tensor "w": its storage "7" is missing)"},
        Malformed{"StorageKeyIsAPath", one({.key = pickled::text("../data.pkl")}),
                  R"(its storage "../data.pkl" is missing)"},
        Malformed{"StorageKeyIsLong", one({.key = pickled::text(std::string(5000, '0'))}),
                  R"(000..." is missing)"},
        Malformed{"StorageTooSmall", one({.count = pickled::integer(7)}),
                  "expected 28 bytes in data/0, found 24: the file is truncated or altered"},
        Malformed{"StorageTooLarge", one({.count = pickled::integer(5)}),
                  "expected 20 bytes in data/0, found 24"},
        Malformed{"StorageOf2To66Bytes", one({.count = pickled::long_integer(INT64_MAX)}),
                  "storage size: it exceeds 64 bits"},
        Malformed{"StorageSizeIsNegative", one({.count = pickled::integer(-6)}),
                  "storage size: expected a number from 0 to 2^63-1, found -6"},
        Malformed{"StorageIsCompressed",
                  build_zip({{.name = "a/data.pkl",
                              .data = pickled::program(dict({{"w", TensorText()()}}))},
                             {.name = "a/data/0", .data = "x", .method = 8, .flags = 8}}),
                  R"(entry "a/data/0": expected it stored)"},
        Malformed{
            "StorageIsNoReference",
            checkpoint(dict({{"w", pickled::call(TensorText().function,
                                                 pickled::tuple({"N", "N", "N", "N", "N", "N"}))}}),
                       {}),
            R"(tensor "w": storage: expected a reference, found None)"},
        Malformed{"StorageReferenceIsShort", one({.place = ""}),
                  R"(storage: expected ("storage", class, key, place, size))"},
        Malformed{"OffsetIsNegative", one({.offset = pickled::integer(-1)}),
                  "offset: expected a number from 0 to 2^63-1, found -1"},
        Malformed{"OffsetLeavesTheStorage", one({.offset = pickled::integer(1)}),
                  "float32 (2, 3) with strides (3, 1) from element 1 leaves data/0, which has 24"},
        Malformed{"OffsetOf2To63", one({.offset = pickled::long_integer(INT64_MAX)}),
                  "leaves data/0"},
        Malformed{"EmptyTensorBeyondTheStorage",
                  one({.offset = pickled::integer(7), .shape = pickled::integers({0, 3})}),
                  "leaves data/0"},
        Malformed{"StridesLeaveTheStorage", one({.strides = pickled::integers({3, 2})}),
                  "float32 (2, 3) with strides (3, 2) from element 0 leaves data/0"},
        Malformed{"StridesOverflow",
                  one({.strides = std::string("(") + pickled::long_integer(INT64_MAX) +
                                  pickled::long_integer(INT64_MAX) + "t"}),
                  "leaves data/0"},
        Malformed{"StrideIsNegative", one({.strides = pickled::integers({-3, 1})}),
                  "strides: expected a number from 0 to 2^63-1, found -3"},
        Malformed{"StridesOfAnotherRank", one({.strides = pickled::integers({1})}),
                  "shape (2, 3) does not fit strides (1,)"},
        Malformed{"ShapeOverflows",
                  one({.shape = std::string("(") + pickled::long_integer(1LL << 40) +
                                pickled::long_integer(1LL << 40) + "t",
                       .strides = pickled::integers({0, 0})}),
                  "shape (1099511627776, 1099511627776) exceeds 64 bits"},
        Malformed{"ShapeIsAList", one({.shape = pickled::list({"K\6"})}),
                  "shape: expected a tuple of at most 64 numbers, found a list"},
        Malformed{"ShapeHoldsAFloat", one({.shape = "G12345678\x85"}),
                  "shape: expected a number from 0 to 2^63-1, found a float"},
        Malformed{"SixtyFiveDimensions",
                  one({.shape = pickled::integers(std::vector<std::int32_t>(65, 1))}),
                  "shape: expected a tuple of at most 64 numbers"},
        Malformed{"TooFewArguments", one({.strides = ""}),
                  "expected 6 values to rebuild it, found 5"},
        Malformed{"UntypedStorage",
                  one({.storage_class = pickled::global("torch.storage", "UntypedStorage"),
                       .count = pickled::integer(24)}),
                  "its storage has no type"}),
    row_name<::testing::TestParamInfo<Malformed>>);

INSTANTIATE_TEST_SUITE_P(
    Legacy, MalformedTensorFile,
    ::testing::Values(
        Malformed{"StorageBeyondTheFile",
                  pickled::legacy(dict({{"w", TensorText()()}}), {"0"},
                                  number<std::int64_t>(1LL << 40) + kSix),
                  "storage \"0\": expected 4398046511104 bytes from byte"},
        Malformed{"StorageOf2To66BytesInTheData",
                  pickled::legacy(dict({{"w", TensorText()()}}), {"0"},
                                  number<std::int64_t>(-1) + kSix),
                  "expected more than 2^64 bytes"},
        Malformed{"StorageUnlikeItsReference",
                  pickled::legacy(dict({{"w", TensorText()()}}), {"0"},
                                  number<std::int64_t>(5) + kSix.substr(4)),
                  R"(expected 24 bytes in storage "0", found 20)"},
        Malformed{"StorageNobodyUses",
                  pickled::legacy(dict({{"w", TensorText()()}}), {"0", "1"}, ""),
                  "expected 8 bytes at offset"},
        Malformed{"StorageTwice",
                  pickled::legacy(dict({{"w", TensorText()()}}), {"0", "0"},
                                  number<std::int64_t>(6) + kSix + number<std::int64_t>(6) + kSix),
                  R"(storage "0" occurs twice)"},
        Malformed{"StorageOfNoTensor",
                  pickled::legacy(ordered_dict({}), {"0"}, number<std::int64_t>(0)),
                  R"(no tensor uses storage "0")"},
        Malformed{"StorageNotListed",
                  pickled::legacy(dict({{"w", TensorText()()}}), {}, ""),
                  R"(tensor "w": its storage "0" is missing)"},
        Malformed{"BytesAfterTheStorages",
                  pickled::legacy(dict({{"w", TensorText()()}}), {"0"},
                                  number<std::int64_t>(6) + kSix + "x"),
                  "expected the end after the storages at byte"},
        Malformed{"UnsupportedStorage", [] {
                    TensorText complex;
                    complex.storage_class = pickled::global("torch", "ComplexFloatStorage");
                    return pickled::legacy(dict({{"w", complex()}}), {"0"}, "");
                  }(),
                  "torch.ComplexFloatStorage, a type that is not supported: load it in Python"},
        Malformed{"LegacyBigEndian", [] {
                    std::string bytes = pickled::legacy("}", {}, "");
                    bytes[bytes.find('\x88')] = '\x89';
                    return bytes;
                  }(),
                  "expected byte order little, found another"}),
    row_name<::testing::TestParamInfo<Malformed>>);

}  // namespace
}  // namespace self_attention::io_test
