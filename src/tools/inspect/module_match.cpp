#include "tools/inspect/module_match.h"

#include <map>
#include <string_view>

namespace self_attention::inspect {
namespace {

using Shape = std::vector<std::int64_t>;
using Shapes = std::map<std::string, Shape>;

/// The shape of prefix + name, or an empty one.
Shape shape_of(const Shapes& shapes, const std::string& prefix, std::string_view name) {
  const auto found = shapes.find(prefix + std::string(name));
  return found == shapes.end() ? Shape{} : found->second;
}

std::optional<ModuleMatch> match_shared_heads(const Shapes& shapes, const std::string& prefix) {
  const Shape bias = shape_of(shapes, prefix, "fc_out.bias");
  const Shape projection = shape_of(shapes, prefix, "values.weight");
  if (bias.size() != 1 || projection.size() != 2 || projection[0] < 1) return std::nullopt;
  const std::int64_t embed = bias[0];
  const std::int64_t head_dim = projection[0];
  const Shape output = shape_of(shapes, prefix, "fc_out.weight");
  if (output.size() != 2 || output[1] < 1 || output[1] % head_dim != 0) return std::nullopt;
  const std::int64_t heads = output[1] / head_dim;
  const Shape square = {head_dim, head_dim};
  const bool fits = output[0] == embed && embed / heads == head_dim && projection == square &&
                    shape_of(shapes, prefix, "keys.weight") == square &&
                    shape_of(shapes, prefix, "queries.weight") == square;
  if (!fits) return std::nullopt;
  const bool divides = output[1] == embed;
  return ModuleMatch{prefix, divides ? "SharedProjectionAttention" : "InferredLengthAttention",
                     embed, heads};
}

std::optional<ModuleMatch> match_full_projection(const Shapes& shapes, const std::string& prefix) {
  const Shape bias = shape_of(shapes, prefix, "output_linear.bias");
  if (bias.size() != 1) return std::nullopt;
  const Shape square = {bias[0], bias[0]};
  for (const char* layer : {"q_linear", "k_linear", "v_linear", "output_linear"}) {
    if (shape_of(shapes, prefix, layer + std::string(".weight")) != square ||
        shape_of(shapes, prefix, layer + std::string(".bias")) != bias) {
      return std::nullopt;
    }
  }
  return ModuleMatch{prefix, "FullProjectionAttention", bias[0], std::nullopt};
}

}  // namespace

std::vector<ModuleMatch> match_modules(const io::TensorIndex& index) {
  Shapes shapes;
  for (const io::TensorEntry& entry : index.tensors) shapes.emplace(entry.name, entry.shape);
  std::vector<ModuleMatch> matches;
  for (const auto& [name, shape] : shapes) {
    for (const std::string_view last : {"fc_out.bias", "output_linear.bias"}) {
      if (!name.ends_with(last)) continue;
      const std::string prefix = name.substr(0, name.size() - last.size());
      auto match = match_shared_heads(shapes, prefix);
      if (!match) match = match_full_projection(shapes, prefix);
      if (match) matches.push_back(*match);
    }
  }
  return matches;
}

}  // namespace self_attention::inspect
