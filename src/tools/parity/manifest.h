#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/element_type.h"

namespace self_attention::parity {

enum class Variant : std::uint8_t { kSharedProjection, kFullProjection, kInferredLength };

/// "shared_projection", "full_projection", "inferred_length".
std::string_view variant_name(Variant variant);

/// What the library owes in a case.
enum class Owes : std::uint8_t {
  kEqual,    ///< what the Python class returned
  kRefuse,   ///< an error whose message holds given words
  kDeparts,  ///< by a stated rule something else than the class: the float64 formula's result
};

/// "equal", "refuse", "departs".
std::string_view owes_name(Owes owes);

/// What decides the last bits of a floating-point result. Two runs are only expected to agree to
/// the bit where all of it agrees.
struct Environment {
  std::string torch_version;
  std::string cpu_capability;
  std::string cpu_model;
  int threads = 1;
};

/// One stored tensor as Python described it. Strides are in elements and may be 0 or leave gaps.
struct TensorRecord {
  io::ElementType type;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::uint32_t crc32 = 0;
};

/// One case. Tensors are keyed by role: "input.NAME", "mask", "parameter.NAME", "cotangent",
/// "output", "gradient.NAME", and "float64.output", "float64.gradient.NAME".
struct CaseRecord {
  std::string name;
  Variant variant;
  io::ElementType dtype;
  std::string mask_kind;
  std::int64_t embed = 0;
  std::int64_t heads = 0;
  Owes owes;
  std::vector<std::string> words;  ///< refuse: what the message must hold
  std::string rule;                ///< departs: the rule's name
  std::string source_error;        ///< what the Python class raised, empty if it returned
  std::string file;                ///< safetensors file, beside the manifest
  std::map<std::string, std::string> arguments;  ///< argument of forward -> NAME of the input
  std::map<std::string, TensorRecord> tensors;

  bool has(const std::string& role) const { return tensors.contains(role); }
};

/// A reference directory's manifest.json, every field checked.
struct Manifest {
  std::string directory;
  bool snapshot = false;  ///< numbers for every machine: bits are never demanded
  Environment environment;
  std::int64_t seed = 0;
  std::vector<CaseRecord> cases;
};

/// Reads DIRECTORY/manifest.json. Throws io::FormatError, naming the file, the case and the remedy,
/// for anything that is missing, out of bounds, of an unknown kind or version, or inconsistent.
Manifest read_manifest(const std::string& directory);

/// What the roles of a case's tensors start with; kFloat64Prefix comes before the others.
inline constexpr std::string_view kInputPrefix = "input.";
inline constexpr std::string_view kParameterPrefix = "parameter.";
inline constexpr std::string_view kGradientPrefix = "gradient.";
inline constexpr std::string_view kFloat64Prefix = "float64.";

/// prefix + name.
std::string role(std::string_view prefix, std::string_view name);

}  // namespace self_attention::parity
