// Reference directories that cannot be used: each is refused with a message that names the place.

#include "tools/parity/manifest.h"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "io/format_error.h"
#include "parity/reference_copy.h"
#include "tools/parity/reference_case.h"

namespace self_attention::parity {
namespace {

using Json = nlohmann::ordered_json;

/// Reads the directory as the command does; the message of the error, or "nothing thrown".
std::string error_of(const std::string& directory) {
  try {
    const Manifest manifest = read_manifest(directory);
    ReferenceReader reader(manifest);
    for (const CaseRecord& record : manifest.cases) reader.load(record);
  } catch (const io::FormatError& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// One way to spoil a manifest, and what the message must hold.
struct Spoiled {
  std::string name;
  std::function<void(Json& root, Json& equal_case)> spoil;
  std::vector<std::string> words;
};

void PrintTo(const Spoiled& spoiled, std::ostream* out) { *out << spoiled.name; }

class SpoiledManifest : public testing::TestWithParam<Spoiled> {};

TEST_P(SpoiledManifest, IsRefused) {
  ReferenceCopy copy;
  ASSERT_EQ(error_of(copy.directory()), "nothing thrown");
  GetParam().spoil(copy.manifest, copy.first_case("equal"));
  copy.save();
  const std::string error = error_of(copy.directory());
  EXPECT_TRUE(error.starts_with(copy.directory())) << error;
  EXPECT_NE(error.find("export_reference.py"), std::string::npos) << error;
  for (const std::string& word : GetParam().words) {
    EXPECT_NE(error.find(word), std::string::npos) << error;
  }
}

Json& tensor(Json& entry, const char* role) { return entry["tensors"][role]; }

/// The name of an input tensor of the case, with its prefix.
std::string input_role(const Json& entry) {
  return "input." + entry["arguments"]["query"].get<std::string>();
}

const std::vector<Spoiled> kRoot = {
    {"Format", [](Json& root, Json&) { root["format"] = "another"; }, {"format", "another"}},
    {"Version", [](Json& root, Json&) { root["format_version"] = 2; }, {"format_version", "got 2"}},
    {"VersionMissing",
     [](Json& root, Json&) { root.erase("format_version"); },
     {"format_version is missing"}},
    {"SnapshotIsText", [](Json& root, Json&) { root["snapshot"] = "yes"; }, {"true or false"}},
    {"NoThreads", [](Json& root, Json&) { root["threads"] = 0; }, {"threads", "got 0"}},
    {"ThreadsBeyond64Bits", [](Json& root, Json&) { root["threads"] = UINT64_MAX; }, {"threads"}},
    {"ThreadsFraction", [](Json& root, Json&) { root["threads"] = 1.5; }, {"whole number"}},
    {"NoCases", [](Json& root, Json&) { root["cases"] = Json::array(); }, {"at least one case"}},
    {"CasesAreNoList", [](Json& root, Json&) { root["cases"] = "many"; }, {"cases", "a list"}},
    {"NameTwice",
     [](Json& root, Json& entry) { root["cases"].push_back(Json(entry)); },
     {"a name that no other case has"}},
};

const std::vector<Spoiled> kCase = {
    {"Variant", [](Json&, Json& entry) { entry["variant"] = "fourth"; }, {"variant", "fourth"}},
    {"Dtype", [](Json&, Json& entry) { entry["dtype"] = "float8"; }, {"dtype", "float8"}},
    {"Owes", [](Json&, Json& entry) { entry["owes"] = "nothing"; }, {"owes", "nothing"}},
    {"WordsMissing", [](Json&, Json& entry) { entry["owes"] = "refuse"; }, {"words is missing"}},
    {"WordsEmpty",
     [](Json&, Json& entry) {
       entry["owes"] = "refuse";
       entry["words"] = Json::array();
     },
     {"at least one word"}},
    {"RuleMissing", [](Json&, Json& entry) { entry["owes"] = "departs"; }, {"rule is missing"}},
    {"Embed", [](Json&, Json& entry) { entry["embed"] = INT64_MAX; }, {"embed"}},
    {"NameWithEscape", [](Json&, Json& entry) { entry["name"] = "a\x1b[31m"; }, {"printable"}},
    {"FileElsewhere", [](Json&, Json& entry) { entry["file"] = "../secret"; }, {"beside"}},
    {"FileMissing",
     [](Json&, Json& entry) { entry["file"] = "none.safetensors"; },
     {"none.safetensors", "case"}},
    {"Argument", [](Json&, Json& entry) { entry["arguments"]["extra"] = "q"; }, {"extra"}},
    {"ArgumentMissing",
     [](Json&, Json& entry) { entry["arguments"].erase("keys"); },
     {"values, keys, query"}},
    {"ArgumentWithoutTensor",
     [](Json&, Json& entry) { entry["arguments"]["keys"] = "none"; },
     {"input.NAME"}},
};

const std::vector<Spoiled> kTensor = {
    {"UnknownRole",
     [](Json&, Json& entry) { tensor(entry, "extra") = tensor(entry, "output"); },
     {"extra"}},
    {"OutputMissing",
     [](Json&, Json& entry) { entry["tensors"].erase("output"); },
     {"output is missing"}},
    {"Float64GradientMissing",
     [](Json&, Json& entry) { entry["tensors"].erase("float64.gradient.fc_out.bias"); },
     {"float64.gradient.fc_out.bias is missing"}},
    {"GradientShape",
     [](Json&, Json& entry) { tensor(entry, "gradient.fc_out.bias")["shape"] = {1}; },
     {"gradient.fc_out.bias", "(1,)"}},
    {"Float64Missing",
     [](Json&, Json& entry) { entry["tensors"].erase("float64.output"); },
     {"float64.output is missing"}},
    {"TensorDtype",
     [](Json&, Json& entry) { tensor(entry, "output")["dtype"] = "complex64"; },
     {"complex64"}},
    {"OutputDtype",
     [](Json&, Json& entry) { tensor(entry, "output")["dtype"] = "float64"; },
     {"output", "float64"}},
    {"Shape",
     [](Json&, Json& entry) {
       tensor(entry, "output")["shape"] = {1, 2, 3};
     },
     {"shape"}},
    {"NegativeShape",
     [](Json&, Json& entry) { tensor(entry, "output")["shape"][0] = -1; },
     {"whole number"}},
    {"HugeShape",
     [](Json&, Json& entry) { tensor(entry, "output")["shape"][0] = INT64_MAX; },
     {"shape"}},
    {"StridesMissing",
     [](Json&, Json& entry) { tensor(entry, "output").erase("strides"); },
     {"strides is missing"}},
    {"StridesTooFew",
     [](Json&, Json& entry) { tensor(entry, "output")["strides"] = {1}; },
     {"as many as in shape"}},
    {"StridesBeyondMemory",
     [](Json&, Json& entry) {
       for (Json& stride : entry["tensors"][input_role(entry)]["strides"]) stride = INT64_MAX / 2;
     },
     {"strides", "at most"}},
    {"StridesOverlap",
     [](Json&, Json& entry) {
       for (Json& stride : entry["tensors"][input_role(entry)]["strides"]) stride = 0;
     },
     {"strides", "one place"}},
    {"Checksum",
     [](Json&, Json& entry) { tensor(entry, "output")["crc32"] = "00000000"; },
     {"case", "output", "checksum 00000000"}},
    {"ChecksumDigits",
     [](Json&, Json& entry) { tensor(entry, "output")["crc32"] = "0x12"; },
     {"8 hexadecimal digits"}},
};

std::string spoiled_name(const testing::TestParamInfo<Spoiled>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Root, SpoiledManifest, testing::ValuesIn(kRoot), spoiled_name);
INSTANTIATE_TEST_SUITE_P(Case, SpoiledManifest, testing::ValuesIn(kCase), spoiled_name);
INSTANTIATE_TEST_SUITE_P(Tensor, SpoiledManifest, testing::ValuesIn(kTensor), spoiled_name);

TEST(Manifest, ThatIsNoJsonIsRefused) {
  ReferenceCopy copy;
  const std::string deep = std::string(1'000'000, '[');
  for (const std::string& text : {std::string(), std::string("not json"), std::string("[1]"), deep,
                                  std::string("\xff\xfe")}) {
    ReferenceCopy::write(copy.manifest_path(), text);
    EXPECT_TRUE(error_of(copy.directory()).starts_with(copy.manifest_path()));
  }
}

TEST(Manifest, DescribesItsCases) {
  ReferenceCopy copy;
  const Json& entry = copy.first_case("equal");
  const Manifest manifest = read_manifest(copy.directory());
  EXPECT_TRUE(manifest.snapshot);
  EXPECT_EQ(manifest.environment.threads, copy.manifest["threads"]);
  ASSERT_EQ(manifest.cases.size(), copy.manifest["cases"].size());
  for (const CaseRecord& record : manifest.cases) {
    if (record.name != entry["name"]) continue;
    EXPECT_EQ(record.variant, Variant::kSharedProjection);
    EXPECT_EQ(record.embed, entry["embed"]);
    EXPECT_EQ(record.tensors.size(), entry["tensors"].size());
    EXPECT_EQ(record.tensors.at("output").shape, entry["tensors"]["output"]["shape"]);
  }
}

TEST(ReferenceCase, RebuildsStridesAroundPoison) {
  ReferenceCopy copy;
  Json& entry = copy.first_case("equal");
  const std::string role = input_role(entry);
  const std::vector<std::int64_t> shape = entry["tensors"][role]["shape"];
  ASSERT_EQ(shape.size(), 3U);
  // The last axis outermost and a gap after each element.
  entry["tensors"][role]["strides"] = {2, 2 * shape[0], 2 * shape[0] * shape[1]};
  copy.save();
  const Manifest manifest = read_manifest(copy.directory());
  for (const CaseRecord& record : manifest.cases) {
    if (record.name != entry["name"]) continue;
    const ReferenceCase loaded = ReferenceReader(manifest).load(record);
    const StridedTensor& tensor = loaded.tensors.at(role);
    const auto count = static_cast<std::size_t>(shape[0] * shape[1] * shape[2]);
    ASSERT_EQ(tensor.storage.size(), (2 * count - 1) * sizeof(float));
    std::vector<float> storage(2 * count - 1);
    std::memcpy(storage.data(), tensor.storage.data(), tensor.storage.size());
    for (std::size_t i = 0; i < storage.size(); ++i) {
      EXPECT_EQ(std::isnan(storage[i]), i % 2 == 1) << i;
    }
  }
}

}  // namespace
}  // namespace self_attention::parity
