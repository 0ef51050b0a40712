#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/bytes.h"

namespace self_attention::io_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// The file of that header and `data` zero bytes.
std::string safetensors(std::string_view json, std::size_t data = 0) {
  return number<std::uint64_t>(json.size()) + std::string(json) + std::string(data, '\0');
}

/// A header with one tensor "w" of four bytes; `field` replaces the part of that name.
std::string one_tensor(const std::string& dtype = R"("F32")", const std::string& shape = "[1]",
                       const std::string& offsets = "[0,4]") {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(SafetensorsHeader, ReadsEntriesInTheOrderOfTheirData) {
  const std::string json = R"({"__metadata__":{"format":"pt","unit":"µm"},)"
                           R"("b":{"dtype":"F16","shape":[2,3],"data_offsets":[8,20]},)"
                           R"("empty":{"dtype":"I64","shape":[4,0],"data_offsets":[20,20]},)"
                           R"("a":{"shape":[],"data_offsets":[0,8],"dtype":"F64"}}   )";
  const io::SafetensorsHeader header = io::read_safetensors_header(file_of(safetensors(json, 20)));
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_EQ(header.entries[2].name, "empty");
  const io::SafetensorsEntry* b = header.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, io::ElementType::kFloat16);
  EXPECT_THAT(b->shape, ElementsAre(2, 3));
  EXPECT_EQ(b->offset, 8 + json.size() + 8);
  EXPECT_EQ(b->bytes, 12U);
  EXPECT_TRUE(header.find("a")->shape.empty());
  EXPECT_EQ(header.find("empty")->bytes, 0U);
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_EQ(header.find(""), nullptr);
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt"), Pair("unit", "µm")));
}

TEST(SafetensorsHeader, KnowsEveryElementType) {
  const std::vector<std::pair<std::string, std::string>> types = {
      {"BOOL", "bool"},   {"U8", "uint8"},    {"I8", "int8"},     {"I16", "int16"},
      {"I32", "int32"},   {"I64", "int64"},   {"F16", "float16"}, {"BF16", "bfloat16"},
      {"F32", "float32"}, {"F64", "float64"},
  };
  for (const auto& [dtype, name] : types) {
    const std::size_t size = io::element_size(io::element_type_from_name(name).value());
    const std::string json =
        one_tensor('"' + dtype + '"', "[]", "[0," + std::to_string(size) + "]");
    const auto header = io::read_safetensors_header(file_of(safetensors(json, size)));
    EXPECT_EQ(io::element_name(header.entries.at(0).type), name);
  }
  EXPECT_EQ(io::element_type_from_name("complex64"), std::nullopt);
}

TEST(SafetensorsHeader, ReadsAFileWithoutTensors) {
  EXPECT_TRUE(io::read_safetensors_header(file_of(safetensors("{}"))).entries.empty());
}

TEST(SafetensorsHeader, ListsUnsupportedTypesOnRequest) {
  const std::string json = R"({"scale":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                           R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  const auto header =
      io::read_safetensors_header(file_of(safetensors(json, 8)), io::UnsupportedTypes::kList);
  ASSERT_EQ(header.unsupported.size(), 1U);
  EXPECT_EQ(header.unsupported[0].name, "scale");
  EXPECT_EQ(header.unsupported[0].dtype, "F8_E4M3");
  EXPECT_NE(header.find("w"), nullptr);
}

TEST(SafetensorsHeader, RefusesEveryTruncation) {
  const std::string whole = safetensors(one_tensor(), 4);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const io::InputFile file = file_of(whole.substr(0, length));
    EXPECT_THAT(error_of([&] { io::read_safetensors_header(file); }), HasSubstr("test.file: "))
        << length << " bytes";
  }
}

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsRefusedWithItsOwnMessage) {
  const io::InputFile file = file_of(GetParam().bytes);
  EXPECT_THAT(error_of([&] { io::read_safetensors_header(file); }),
              AllOf(HasSubstr("test.file: safetensors header: "), HasSubstr(GetParam().message)));
}

const std::string kPair =
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
    R"("data_offsets":)";

INSTANTIATE_TEST_SUITE_P(
    Files, MalformedSafetensors,
    ::testing::Values(
        Malformed{"Empty", "", "expected at least 8 bytes, the file has 0"},
        Malformed{"HeaderBeyondTheFile", number<std::uint64_t>(99) + "{}",
                  "expected 99 bytes of JSON, the file has only 2: it is truncated"},
        Malformed{"HeaderOf101Megabytes", number<std::uint64_t>(101'000'000) + "{}",
                  "expected at most 100000000 bytes of JSON, the file announces 101000000"},
        Malformed{"HeaderLengthOf2To64", std::string(8, '\xff') + "{}",
                  "the file announces 18446744073709551615"},
        Malformed{"HeaderOfNoBytes", safetensors(""), "expected JSON that starts with '{'"},
        Malformed{"ByteOrderMark", safetensors("\xef\xbb\xbf{}"), "starts with '{'"},
        Malformed{"LeadingSpace", safetensors(" {}"), "starts with '{'"},
        Malformed{"NotJson", safetensors("{w}"), R"(expected JSON, found "{w" at byte 2)"},
        Malformed{"TextAfterTheObject", safetensors("{} {}"), "expected JSON, found"},
        Malformed{"InvalidUtf8", safetensors("{\"\xff\":1}"), R"(found "\"\xff")"},
        Malformed{"NestedAMillionDeep", safetensors("{\"w\":" + std::string(1'000'000, '[')),
                  R"("w": expected an object, found a list)"},
        Malformed{"ObjectInATensor", safetensors(one_tensor("{}")),
                  R"(tensor "w": dtype: expected a string, found an object)"},
        Malformed{"ListInAList", safetensors(one_tensor(R"("F32")", "[[1]]")),
                  R"(tensor "w": shape: expected numbers from 0 to 2^63-1, found a list)"},
        Malformed{"TensorIsANumber", safetensors(R"({"w":1})"),
                  "expected an object, found a number"},
        Malformed{"TensorIsNull", safetensors(R"({"w":null})"), "expected an object, found null"},
        Malformed{"MetadataIsANumber", safetensors(R"({"__metadata__":{"step":1}})"),
                  R"(__metadata__ "step": expected a string, found a number)"},
        Malformed{"MetadataTwice", safetensors(R"({"__metadata__":{},"__metadata__":{}})"),
                  R"(the header holds "__metadata__" twice)"},
        Malformed{"MetadataKeyTwice", safetensors(R"({"__metadata__":{"a":"1","a":"2"}})"),
                  R"(__metadata__ holds "a" twice)"},
        Malformed{"NameTwice",
                  safetensors(kPair + "[4,8]},\"a\":{\"dtype\":\"U8\",\"shape\":[0],"
                                      "\"data_offsets\":[8,8]}}",
                              8),
                  R"(tensor "a" occurs twice)"},
        Malformed{"FieldTwice", safetensors(R"({"w":{"dtype":"U8","dtype":"U8"}})"),
                  R"("w" holds "dtype" twice)"},
        Malformed{"ShapeTwice", safetensors(R"({"w":{"shape":[1],"shape":[1]}})"),
                  R"("w" holds "shape" twice)"},
        Malformed{"OffsetsTwice",
                  safetensors(R"({"w":{"data_offsets":[0,1],"data_offsets":[0,1]}})"),
                  R"("w" holds "data_offsets" twice)"},
        Malformed{"UnknownField", safetensors(R"({"w":{"offsets":[0,4]}})"),
                  R"(expected dtype, shape and data_offsets, found "offsets")"},
        Malformed{"DtypeIsMissing", safetensors(R"({"w":{"shape":[],"data_offsets":[0,0]}})"),
                  R"(tensor "w": dtype is missing)"},
        Malformed{"ShapeIsMissing", safetensors(R"({"w":{"dtype":"U8","data_offsets":[0,0]}})"),
                  R"(tensor "w": shape is missing)"},
        Malformed{"OffsetsAreMissing", safetensors(R"({"w":{"dtype":"U8","shape":[]}})"),
                  R"(tensor "w": data_offsets is missing)"},
        Malformed{"DtypeIsUnknown", safetensors(one_tensor(R"("F\u001b[31m")"), 4),
                  R"(tensor "w": dtype "F\x1b[31m" is not supported)"},
        Malformed{"NegativeDimension", safetensors(one_tensor(R"("F32")", "[-1]"), 4),
                  "shape: expected numbers from 0 to 2^63-1, found a negative number"},
        Malformed{"FractionalDimension", safetensors(one_tensor(R"("F32")", "[1.0]"), 4),
                  "found a fraction"},
        Malformed{"DimensionOf2To63", safetensors(one_tensor(R"("F32")", "[9223372036854775808]")),
                  "found a number beyond 63 bits"},
        Malformed{"ShapeOverflows",
                  safetensors(one_tensor(R"("F32")", "[4294967296,4294967297]"), 4),
                  "expected more than 2^63 bytes for float32 (4294967296, 4294967297), found 4"},
        Malformed{"EmptyShapeWhoseStridesOverflow",
                  safetensors(one_tensor(R"("F32")", "[0,4294967296,4294967296]", "[0,0]")),
                  "expected more than 2^63 bytes"},
        Malformed{"SixtyFiveDimensions",
                  safetensors(one_tensor(R"("F32")", "[1" +
                                                         [] {
                                                           std::string ones;
                                                           for (int i = 0; i < 64; ++i)
                                                             ones += ",1";
                                                           return ones;
                                                         }() +
                                                         "]")),
                  "found a list of more than 64 numbers"},
        Malformed{"ThreeOffsets", safetensors(one_tensor(R"("F32")", "[1]", "[0,4,4]"), 4),
                  "data_offsets: expected [begin, end], found (0, 4, 4)"},
        Malformed{"OffsetsInReverse", safetensors(one_tensor(R"("F32")", "[1]", "[4,0]"), 4),
                  "data_offsets: expected [begin, end], found (4, 0)"},
        Malformed{"RangeUnlikeTheShape", safetensors(one_tensor(R"("F32")", "[2]"), 4),
                  R"(tensor "w": expected 8 bytes for float32 (2,), found 4)"},
        Malformed{"Overlap", safetensors(kPair + "[2,6]}}", 6),
                  R"(tensor "b": expected data from byte 4, found it from 2: the data overlap)"},
        Malformed{
            "Hole", safetensors(kPair + "[6,10]}}", 10),
            R"(tensor "b": expected data from byte 4, found it from 6: the data have a hole)"},
        Malformed{"HoleAtTheStart", safetensors(one_tensor(R"("F32")", "[1]", "[4,8]"), 8),
                  "expected data from byte 0"},
        Malformed{"DataTruncated", safetensors(one_tensor(), 3),
                  "expected 4 bytes of data, the file has 3: it is truncated"},
        Malformed{"DataTooLong", safetensors(one_tensor(), 5),
                  "expected 4 bytes of data, the file has 5: it is longer than its tensors"}),
    row_name<::testing::TestParamInfo<Malformed>>);

}  // namespace
}  // namespace self_attention::io_test
