#include "tools/parity/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "io/checked.h"
#include "io/format_error.h"
#include "io/input_file.h"
#include "io/text.h"
#include "tools/parity/json_node.h"

namespace self_attention::parity {
namespace {

constexpr std::string_view kFormat = "self-attention-reference";
constexpr std::int64_t kFormatVersion = 1;

// Generous for real exports (a case has about 40 tensors of a few KiB), small enough that a wrong
// file is refused before it hurts.
constexpr std::uint64_t kLargestManifest = std::uint64_t{256} << 20;
constexpr std::size_t kLongestName = 300;
constexpr std::size_t kMostDimensions = 16;
constexpr std::uint64_t kLargestTensor = std::uint64_t{1} << 30;

template <typename T>
using Named = std::pair<std::string_view, T>;

constexpr std::array<Named<Variant>, 3> kVariants = {{
    {"shared_projection", Variant::kSharedProjection},
    {"full_projection", Variant::kFullProjection},
    {"inferred_length", Variant::kInferredLength},
}};
constexpr std::array<Named<Owes>, 3> kOwes = {{
    {"equal", Owes::kEqual},
    {"refuse", Owes::kRefuse},
    {"departs", Owes::kDeparts},
}};
constexpr std::array<Named<io::ElementType>, 4> kModuleTypes = {{
    {"float64", io::ElementType::kFloat64},
    {"float32", io::ElementType::kFloat32},
    {"bfloat16", io::ElementType::kBFloat16},
    {"float16", io::ElementType::kFloat16},
}};

template <typename T, std::size_t kSize>
T one_of(const JsonNode& node, const std::array<Named<T>, kSize>& choices) {
  const std::string text = node.text();
  std::vector<std::string_view> names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names.push_back(name);
  }
  node.fail(fmt::format("one of {}", fmt::join(names, ", ")));
}

std::uint32_t read_checksum(const JsonNode& node) {
  const std::string text = node.text();
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 8 || error != std::errc() || end != text.data() + text.size()) {
    node.fail("8 hexadecimal digits");
  }
  return value;
}

std::vector<std::int64_t> read_sizes(const JsonNode& node) {
  std::vector<std::int64_t> sizes;
  for (const JsonNode& item : node.items()) {
    sizes.push_back(item.integer(0, std::numeric_limits<std::int64_t>::max()));
  }
  if (sizes.size() > kMostDimensions) {
    node.fail(fmt::format("at most {} dimensions", kMostDimensions));
  }
  return sizes;
}

TensorRecord read_tensor(const JsonNode& node) {
  const JsonNode dtype = node.at("dtype");
  const auto type = io::element_type_from_name(dtype.text());
  if (!type) dtype.fail("a dtype such as float32, int64 or bool");
  TensorRecord record{*type, read_sizes(node.at("shape")), read_sizes(node.at("strides")),
                      read_checksum(node.at("crc32"))};
  const auto bytes = io::tensor_bytes(record.shape, io::element_size(record.type));
  if (!bytes || *bytes > kLargestTensor) {
    node.at("shape").fail(fmt::format("at most {} bytes", kLargestTensor));
  }
  if (record.strides.size() != record.shape.size()) {
    node.at("strides").fail(fmt::format("{} numbers, as many as in shape", record.shape.size()));
  }
  return record;
}

/// The names that forward has for its tensors, the mask apart.
std::array<std::string_view, 3> argument_names(Variant variant) {
  if (variant == Variant::kInferredLength) return {"values", "keys", "queries"};
  return {"values", "keys", "query"};
}

/// Reads one case and checks that its parts belong together.
class CaseReader {
 public:
  explicit CaseReader(JsonNode node) : node_(std::move(node)) {}

  CaseRecord read() {
    case_.variant = one_of(node_.at("variant"), kVariants);
    case_.dtype = one_of(node_.at("dtype"), kModuleTypes);
    case_.mask_kind = node_.at("mask_kind").line(kLongestName);
    constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
    case_.embed = node_.at("embed").integer(-kLargest, kLargest);
    case_.heads = node_.at("heads").integer(-kLargest, kLargest);
    case_.owes = one_of(node_.at("owes"), kOwes);
    if (case_.owes == Owes::kRefuse) read_words();
    if (case_.owes == Owes::kDeparts) case_.rule = node_.at("rule").text();
    if (const auto error = node_.find("source_error")) case_.source_error = error->text();
    read_file();
    read_tensors();
    read_arguments();
    if (case_.owes != Owes::kRefuse) require_results();
    return std::move(case_);
  }

 private:
  void read_words() {
    const JsonNode words = node_.at("words");
    for (const JsonNode& word : words.items()) {
      case_.words.push_back(word.text());
      if (case_.words.back().empty()) word.fail("a text that is not empty");
    }
    if (case_.words.empty()) words.fail("at least one word that the message must hold");
  }

  void read_file() {
    const JsonNode file = node_.at("file");
    case_.file = file.line(kLongestName);
    if (case_.file.find('/') != std::string::npos || case_.file.starts_with('.')) {
      file.fail("the name of a file beside manifest.json");
    }
  }

  void read_tensors() {
    for (const auto& [name, node] : node_.at("tensors").members()) {
      if (!known_role(name)) {
        node.fail(
            "input.NAME, mask, parameter.NAME, cotangent, output, gradient.NAME, float64.output or "
            "float64.gradient.NAME");
      }
      case_.tensors.emplace(name, read_tensor(node));
    }
  }

  static bool known_role(std::string_view name) {
    const auto named = [&](std::string_view prefix) {
      return name.starts_with(prefix) && name.size() > prefix.size();
    };
    if (name == "mask" || name == "cotangent") return true;
    if (named(kInputPrefix) || named(kParameterPrefix)) return true;
    if (name.starts_with(kFloat64Prefix)) name.remove_prefix(kFloat64Prefix.size());
    return name == "output" || named(kGradientPrefix);
  }

  void read_arguments() {
    const auto names = argument_names(case_.variant);
    const JsonNode arguments = node_.at("arguments");
    for (const auto& [argument, node] : arguments.members()) {
      if (std::ranges::find(names, argument) == names.end()) {
        node.fail(fmt::format("one of the arguments {}", fmt::join(names, ", ")));
      }
      const std::string input = node.text();
      if (!case_.has(role(kInputPrefix, input))) node.fail("the NAME of a tensor input.NAME");
      case_.arguments.emplace(argument, input);
    }
    if (case_.owes == Owes::kRefuse) return;
    const bool all = case_.arguments.size() == names.size();
    const bool alone = case_.variant == Variant::kFullProjection && case_.arguments.size() == 1 &&
                       case_.arguments.contains("values");
    if (!all && !alone) arguments.fail(fmt::format("{}", fmt::join(names, ", ")));
  }

  /// The output must be there, and every result fit to what it belongs to. A gradient may be
  /// absent, where the class gives none; then the library must give none either.
  void require_results() const {
    const bool raised = case_.owes == Owes::kEqual && !case_.source_error.empty();
    if (raised) return;
    require_result("output", require("cotangent", case_.dtype).shape);
    for (const auto& [name, tensor] : case_.tensors) {
      for (const std::string_view prefix : {kInputPrefix, kParameterPrefix}) {
        if (!name.starts_with(prefix)) continue;
        const std::string gradient = role(kGradientPrefix, name.substr(prefix.size()));
        if (case_.has(gradient) || case_.has(role(kFloat64Prefix, gradient))) {
          require_result(gradient, tensor.shape);
        }
      }
    }
  }

  /// The result in the case's dtype, and in float64 where that is what it may be compared with.
  void require_result(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const bool departs = case_.owes == Owes::kDeparts;
    if (!departs) require_shape(name, require(name, case_.dtype), shape);
    if (!departs && case_.dtype == io::ElementType::kFloat64) return;
    const std::string exact = role(kFloat64Prefix, name);
    require_shape(exact, require(exact, io::ElementType::kFloat64), shape);
  }

  const TensorRecord& require(const std::string& name, io::ElementType type) const {
    const auto found = case_.tensors.find(name);
    if (found == case_.tensors.end()) refuse(fmt::format("{} is missing", name));
    if (found->second.type != type) {
      refuse(fmt::format("{}: expected {}, got {}", name, io::element_name(type),
                         io::element_name(found->second.type)));
    }
    return found->second;
  }

  void require_shape(const std::string& name, const TensorRecord& tensor,
                     const std::vector<std::int64_t>& shape) const {
    if (tensor.shape == shape) return;
    refuse(fmt::format("{}: expected shape {}, got {}", name, io::shape_text(shape),
                       io::shape_text(tensor.shape)));
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw io::FormatError(fmt::format("{}: tensors: {}; {}", node_.place(), what, kExportAgain));
  }

  JsonNode node_;
  CaseRecord case_{};
};

Environment read_environment(const JsonNode& root) {
  constexpr std::int64_t kMostThreads = 4096;
  return {root.at("torch_version").text(), root.at("cpu_capability").text(),
          root.at("cpu_model").text(),
          static_cast<int>(root.at("threads").integer(1, kMostThreads))};
}

void require_format(const JsonNode& root) {
  const JsonNode format = root.at("format");
  if (format.text() != kFormat) format.fail(fmt::format("\"{}\"", kFormat));
  const JsonNode version = root.at("format_version");
  if (version.integer(0, std::numeric_limits<std::int64_t>::max()) != kFormatVersion) {
    version.fail(fmt::format("{}, the version that this program reads", kFormatVersion));
  }
}

std::string read_text(const std::string& directory, const std::string& path) {
  if (!std::filesystem::is_directory(directory)) {
    throw io::FormatError(fmt::format("{}: expected a directory, found {}; {}", directory,
                                      std::filesystem::exists(directory) ? "a file" : "nothing",
                                      kExportAgain));
  }
  if (!std::filesystem::exists(path)) {
    throw io::FormatError(fmt::format("{}: no such file, so {} is not a reference directory; {}",
                                      path, directory, kExportAgain));
  }
  const io::InputFile file(path);
  if (file.size() > kLargestManifest) {
    throw io::FormatError(fmt::format("{}: expected at most {} bytes, the file has {}; {}", path,
                                      kLargestManifest, file.size(), kExportAgain));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string_view variant_name(Variant variant) {
  return kVariants.at(static_cast<std::size_t>(variant)).first;
}

std::string_view owes_name(Owes owes) { return kOwes.at(static_cast<std::size_t>(owes)).first; }

std::string role(std::string_view prefix, std::string_view name) {
  return fmt::format("{}{}", prefix, name);
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "manifest.json").string();
  const nlohmann::json json = parse_json(path, read_text(directory, path));
  const JsonNode root(json, path);
  require_format(root);
  Manifest manifest{directory,
                    root.at("snapshot").flag(),
                    read_environment(root),
                    root.at("seed").integer(std::numeric_limits<std::int64_t>::min(),
                                            std::numeric_limits<std::int64_t>::max()),
                    {}};
  const JsonNode cases = root.at("cases");
  std::set<std::string> names;
  for (const JsonNode& node : cases.items()) {
    const JsonNode name_node = node.at("name");
    const std::string name = name_node.line(kLongestName);
    if (!names.insert(name).second) name_node.fail("a name that no other case has");
    manifest.cases.push_back(
        CaseReader(node.renamed(fmt::format("{}: case {}", path, name))).read());
    manifest.cases.back().name = name;
  }
  if (manifest.cases.empty()) cases.fail("at least one case");
  return manifest;
}

}  // namespace self_attention::parity
