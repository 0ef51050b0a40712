// An exported archive as a file: its parameters, operators, versions, and what cannot be written.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "io/exported.h"
#include "io/input_file.h"
#include "io/tensor_index.h"
#include "io/torchscript_source.h"
#include "io/zip_reader.h"
#include "support/tensor_matchers.h"

namespace self_attention {
namespace {

namespace fs = std::filesystem;
using testing::bit_equal;
using testing::eager;
using testing::operators;
using testing::run;
using testing::throws;

class Archive : public testing::ExportTest {
 protected:
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(
        fs::directory_iterator(fs::path(path("")).parent_path()), fs::directory_iterator()));
  }

  std::string read(const std::string& name) const {
    std::ifstream stream(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::map<std::string, std::string> metadata(const std::string& name) const {
    return io::read_tensor_index(io::InputFile(path(name))).metadata;
  }
};

template <typename Holder>
void add_operators(std::set<std::string>& schemas, const Holder& module, ScriptInputs inputs,
                   const std::string& path) {
  for (const auto mask : {ScriptMask::kRequired, ScriptMask::kNone, ScriptMask::kOptional}) {
    for (const bool freezes : {false, true}) {
      export_torchscript(*module, path, ExportOptions().mask(mask).inputs(inputs).freeze(freezes));
      schemas.merge(operators(torch::jit::load(path)));
    }
  }
}

TEST_F(Archive, UsesThePortableOperatorsAlone_R53_R54) {
  std::set<std::string> schemas;
  for (const int64_t heads : {1, 2, 8}) {
    add_operators(schemas, SharedProjectionAttention(8, heads), ScriptInputs::kSeparate,
                  path("a.pt"));
    add_operators(schemas, InferredLengthAttention(8, heads), ScriptInputs::kSeparate,
                  path("a.pt"));
    add_operators(schemas, FullProjectionAttention(8, heads), ScriptInputs::kSeparate,
                  path("a.pt"));
    add_operators(schemas, FullProjectionAttention(8, heads), ScriptInputs::kSingle, path("a.pt"));
  }
  const auto portable = io::portable_operators();
  EXPECT_EQ(schemas, std::set<std::string>(portable.begin(), portable.end()));
  EXPECT_TRUE(std::ranges::none_of(schemas, [](const std::string& schema) {
    return schema.find("scaled_dot_product") != std::string::npos ||
           schema.find("self_attention::") != std::string::npos;
  }));
}

TEST_F(Archive, HasFileFormatVersion4_R54) {
  export_torchscript(*FullProjectionAttention(8, 2), path("a.pt"));
  const io::InputFile file(path("a.pt"));
  const io::ZipDirectory directory = io::read_zip_directory(file);
  const auto entry = std::ranges::find_if(
      directory.entries, [](const auto& e) { return e.name.ends_with("/version"); });
  ASSERT_NE(entry, directory.entries.end());
  const auto bytes = io::read_zip_entry(file, *entry);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "4\n");
}

TEST_F(Archive, DeepcopyHasParametersOfItsOwn_R63) {
  export_torchscript(*SharedProjectionAttention(8, 2), path("a.pt"));
  const auto module = torch::jit::load(path("a.pt"));
  const auto weight = [](const torch::jit::Module& m) {
    return m.attr("values").toModule().attr("weight").toTensor();
  };
  const auto copy = module.deepcopy();
  EXPECT_NE(weight(copy).data_ptr(), weight(module).data_ptr());
  EXPECT_TRUE(bit_equal(weight(copy), weight(module)));
  EXPECT_EQ(weight(module.clone(/*inplace=*/true)).data_ptr(), weight(module).data_ptr());
}

TEST_F(Archive, SaysWhatItIs) {
  export_torchscript(
      *FullProjectionAttention(8, 2), path("a.pt"),
      ExportOptions().inputs(ScriptInputs::kSingle).mask(ScriptMask::kOptional).freeze(true));
  const std::map<std::string, std::string> expected = {{"format", "self-attention-torchscript"},
                                                       {"library_version", SELF_ATTENTION_VERSION},
                                                       {"torch_version", TORCH_VERSION},
                                                       {"variant", "full_projection"},
                                                       {"embed", "8"},
                                                       {"heads", "2"},
                                                       {"mask", "optional"},
                                                       {"inputs", "single"},
                                                       {"frozen", "true"},
                                                       {"ops", "portable"}};
  EXPECT_EQ(metadata("a.pt"), expected);
}

TEST_F(Archive, ExtraFilesOfOthersAreLeftOut) {
  const auto module = exported(SharedProjectionAttention(8, 2));
  for (const std::string& text :
       {std::string("{"), std::string("[1]"), std::string("{\"a\": {}}"), std::string(5000, '['),
        std::string("{\"a\": ") + std::string(5000, '1') + "}"}) {
    module.save(path("b.pt"), {{"self_attention.json", text}});
    EXPECT_TRUE(metadata("b.pt").empty()) << text.substr(0, 20);
  }
}

TEST_F(Archive, IsAStateDictToo) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    FullProjectionAttention saved(8, 2);
    saved->to(dtype);
    export_torchscript(*saved, path("a.pt"));
    FullProjectionAttention loaded(8, 2);
    loaded->to(dtype);
    EXPECT_TRUE(load_state_dict(*loaded, path("a.pt")).matches());
    for (const auto& parameter : saved->named_parameters()) {
      EXPECT_TRUE(bit_equal(loaded->named_parameters()[parameter.key()], parameter.value()));
    }
  }
}

TEST_F(Archive, KeepsWhatIsTrainedAndWhatIsNot) {
  SharedProjectionAttention module(8, 2);
  module->keys->weight.set_requires_grad(false);
  module->eval();
  const auto script = exported(module);
  for (const auto& parameter : script.named_parameters()) {
    EXPECT_EQ(parameter.value.requires_grad(), parameter.name != "keys.weight") << parameter.name;
  }
  EXPECT_FALSE(script.is_training());
  module->train();
  EXPECT_TRUE(exported(module).is_training());
}

TEST_F(Archive, ParametersMayBeViewsAndTransposed) {
  auto module = eager(SharedProjectionAttention(8, 2));
  const auto storage = torch::randn({1000, 8});
  module->fc_out->weight.set_data(storage.slice(0, 3, 11));
  module->keys->weight.set_data(torch::randn({4, 4}).t());
  module->values->weight.set_data(torch::randn({4, 8}).slice(1, 0, 8, 2));
  auto script = exported(module);
  EXPECT_LT(fs::file_size(path("model.pt")), 20'000U);
  const auto x = torch::randn({2, 5, 8});
  const auto mask = torch::ones({5, 5}).tril();
  EXPECT_TRUE(bit_equal(run(script, {x, x, x, mask}), module->forward(x, x, x, mask)));
}

TEST_F(Archive, InferenceTensorsBecomeOrdinaryOnes) {
  SharedProjectionAttention module{nullptr};
  {
    const c10::InferenceMode inference;
    module = SharedProjectionAttention(8, 2);
    export_torchscript(*module, path("inside.pt"));
  }
  export_torchscript(*module, path("outside.pt"));
  const auto x = torch::randn({2, 5, 8}).requires_grad_();
  const auto mask = torch::ones({5, 5}).tril();
  for (const char* name : {"inside.pt", "outside.pt"}) {
    auto script = torch::jit::load(path(name));
    run(script, {x, x, x, mask}).sum().backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

TEST_F(Archive, ModulesThatCannotBeWrittenAreRefused) {
  const auto single = ExportOptions().inputs(ScriptInputs::kSingle);
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { export_torchscript(*SharedProjectionAttention(8, 2), path("a.pt"), single); },
      {"[export_torchscript] inputs: expected separate for SharedProjectionAttention", "single"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { export_torchscript(*InferredLengthAttention(8, 2), path("a.pt"), single); },
      {"InferredLengthAttention"}));
  SharedProjectionAttention meta(8, 2);
  for (auto* child : {&meta->values, &meta->keys, &meta->queries, &meta->fc_out}) {
    for (torch::Tensor* tensor : {&(*child)->weight, &(*child)->bias}) {
      if (tensor->defined()) *tensor = torch::empty(tensor->sizes(), torch::kMeta);
    }
  }
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { export_torchscript(*meta, path("a.pt")); },
      {"[export_torchscript] values.weight: expected a parameter with data", "meta device"}));
  SharedProjectionAttention mixed(8, 2);
  mixed->fc_out->to(torch::kFloat64);
  EXPECT_TRUE(throws<c10::TypeError>(
      [&] { export_torchscript(*mixed, path("a.pt")); },
      {"[export_torchscript] fc_out.weight: expected float32", "got float64"}));
  SharedProjectionAttention other(8, 2);
  other->keys->weight.set_data(torch::ones({3, 3}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { export_torchscript(*other, path("a.pt")); },
      {"[export_torchscript] keys.weight: expected shape (4, 4), got (3, 3)"}));
  EXPECT_EQ(files(), 0U);
}

TEST_F(Archive, ReplacesAnOlderFile) {
  export_torchscript(*SharedProjectionAttention(8, 2), path("a.pt"));
  auto second = eager(SharedProjectionAttention(4, 1));
  export_torchscript(*second, path("a.pt"), ExportOptions().mask(ScriptMask::kNone));
  auto script = torch::jit::load(path("a.pt"));
  const auto x = torch::randn({2, 5, 4});
  EXPECT_TRUE(bit_equal(run(script, {x, x, x}), second->forward(x, x, x)));
  EXPECT_EQ(files(), 1U);
}

TEST_F(Archive, FilesThatCannotBeWrittenAreRefused) {
  const SharedProjectionAttention module(64, 2);
  EXPECT_TRUE(
      throws<c10::ValueError>([&] { export_torchscript(*module, path("nowhere") + "/a.pt"); },
                              {"[export_torchscript] file: ", "nowhere"}));
  EXPECT_TRUE(throws<c10::ValueError>(
      [&] { export_torchscript(*module, fs::path(path("")).parent_path().string()); },
      {"a directory"}));
  EXPECT_EQ(files(), 0U);
}

TEST_F(Archive, AFullDiskLeavesTheOlderFile) {
  std::ofstream(path("a.pt")) << "old";
  // A limit on the size of files fails in the same call as a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto refused = throws<c10::ValueError>(
      [&] { export_torchscript(*SharedProjectionAttention(64, 2), path("a.pt")); },
      {"[export_torchscript] file: ", "a.pt: writing failed, the file is as before"});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(refused);
  EXPECT_EQ(read("a.pt"), "old");
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace self_attention
