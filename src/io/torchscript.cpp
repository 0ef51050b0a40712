#include <self_attention/io/torchscript.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "io/format_error.h"
#include "io/output_file.h"
#include "io/torchscript_fused.h"
#include "io/torchscript_info.h"
#include "io/torchscript_source.h"
#include "ops/input_checks.h"

namespace self_attention {
namespace {

constexpr std::string_view kWho = "export_torchscript";

/// A child of the module and its name.
struct Layer {
  const char* name;
  const torch::nn::Linear& linear;
};

void check_parameters_of(std::initializer_list<ExpectedParameter> parameters) {
  check_parameters(kWho, parameters);
  for (const ExpectedParameter& parameter : parameters) {
    TORCH_CHECK_VALUE(!parameter.tensor.is_meta(),
                      message(kWho, parameter.name, "a parameter with data",
                              "one on the meta device; load or move the module first"));
  }
}

/// The parameter as an archive holds it: on the CPU, and no view of more, whose storage would come
/// whole. Strides stay, since they decide which kernel a product takes.
torch::Tensor stored(const torch::Tensor& parameter) {
  torch::Tensor tensor = parameter.detach().to(torch::kCPU);
  if (tensor.storage().nbytes() > tensor.nbytes() || tensor.is_inference()) {
    const bool repeats = std::ranges::count(tensor.strides(), 0) > 0;
    tensor = repeats ? tensor.clone()
                     : torch::empty_strided(tensor.sizes(), tensor.strides(), tensor.options())
                           .copy_(tensor);
  }
  return tensor.set_requires_grad(parameter.requires_grad());
}

/// What names mean in our scripts: those of every script, Python's ValueError, and our ops.
struct ScriptNames : public torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name, torch::jit::GraphFunction& function,
      const torch::jit::SourceRange& range) override {
    if (name == "ValueError") return std::make_shared<torch::jit::ExceptionValue>(name);
    if (name == io::kOpNamespace) return std::make_shared<torch::jit::BuiltinModule>(name);
    return NativeResolver::resolveValue(name, function, range);
  }
};

/// A module in TorchScript with those children, whose methods are the form's.
torch::jit::Module build(const io::ScriptForm& form, std::initializer_list<Layer> layers,
                         bool training) {
  std::string name = "__torch__.self_attention.";
  if (form.ops == ScriptOps::kFused) name.append(io::kFusedScope).append(".");
  name.append(io::module_name(form.variant));
  torch::jit::Module script(name, std::make_shared<torch::jit::CompilationUnit>());
  script.register_attribute("training", c10::BoolType::get(), training);
  for (const Layer& layer : layers) {
    torch::jit::Module child("__torch__.self_attention.Linear",
                             script._ivalue()->compilation_unit(), /*shouldMangle=*/true);
    child.register_attribute("training", c10::BoolType::get(), training);
    child.register_parameter("weight", stored(layer.linear->weight), /*is_buffer=*/false);
    if (layer.linear->bias.defined()) {
      child.register_parameter("bias", stored(layer.linear->bias), /*is_buffer=*/false);
    }
    script.register_module(layer.name, child);
  }
  script.define(io::script_source(form), std::make_shared<ScriptNames>());
  return script;
}

bool is_expected(const torch::jit::Node& node, const io::ScriptForm& form) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (schema == nullptr) return true;  // control flow, constants, lists: the language itself
  const std::string name = c10::toString(schema->operator_name());
  if (form.ops == ScriptOps::kFused) return name == io::fused_operator(form.variant);
  return std::ranges::any_of(io::portable_operators(), [&](std::string_view portable) {
    return portable.substr(0, portable.find('(')) == name;
  });
}

/// Throws where a newer LibTorch has put an operator into the code that is not among the form's:
/// older ones may lack it.
void check_operators(const torch::jit::Block& block, const io::ScriptForm& form) {
  for (const torch::jit::Node* node : block.nodes()) {
    TORCH_CHECK(is_expected(*node, form), "[", kWho, "] ops: expected ", io::ops_name(form.ops),
                " operators alone, got ", c10::toString(node->schema()), "; this LibTorch, ",
                TORCH_VERSION, ", rewrites the code");
    for (const torch::jit::Block* inner : node->blocks()) check_operators(*inner, form);
  }
}

void write(const torch::jit::Module& script, const std::string& path, const std::string& info) {
  io::OutputFile file(path);
  // LibTorch's writer ends the process when a write fails, so a failure waits until it is done.
  std::exception_ptr failure;
  const auto writer = [&](const void* data, std::size_t size) {
    if (failure == nullptr) {
      try {
        file.write(std::span(static_cast<const std::byte*>(data), size));
      } catch (...) {
        failure = std::current_exception();
      }
    }
    return size;
  };
  torch::jit::ExportModule(script, writer, {{std::string(io::kScriptInfoFile), info}});
  if (failure != nullptr) std::rethrow_exception(failure);
  file.commit();
}

void export_layers(const io::ScriptForm& form, std::initializer_list<Layer> layers, bool training,
                   const std::string& path, bool freezes) {
  // The archive's tensors are ordinary ones, also of a module made or exported in InferenceMode.
  const c10::InferenceMode ordinary(false);
  const torch::NoGradGuard no_grad;
  torch::jit::Module script = build(form, layers, training && !freezes);
  if (freezes) {
    // Its numerical rewrites are for convolutions and would not be bit-equal.
    script = torch::jit::freeze(script, std::nullopt, /*optimize_numerics=*/false);
  }
  const auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  check_operators(*graph->block(), form);
  try {
    write(script, path, io::script_info(form, freezes, TORCH_VERSION));
  } catch (const io::FormatError& error) {
    TORCH_CHECK_VALUE(false, "[", kWho, "] file: ", error.what());
  }
}

/// The form that the options ask for. Throws where an archive cannot be what the module is.
template <typename Module>
io::ScriptForm form_of(io::ScriptVariant variant, int64_t embed, int64_t heads,
                       const ExportOptions& options, const Module& module) {
  const bool is_causal = module.options.is_causal();
  const double dropout = module.is_training() ? module.options.dropout() : 0;
  TORCH_CHECK_VALUE(dropout == 0, message(kWho, "module", "eval mode, as archives drop nothing",
                                          c10::str("training mode with dropout=", dropout)));
  TORCH_CHECK_VALUE(!is_causal || options.ops() == ScriptOps::kFused,
                    message(kWho, "ops",
                            "fused for a module with is_causal (a portable archive takes the mask "
                            "that causal_mask makes)",
                            "portable"));
  return {variant, embed, heads, options.mask(), options.inputs(), options.ops(), is_causal};
}

/// For the two modules with one matrix a role.
template <typename Module>
void export_shared_heads(io::ScriptVariant variant, const Module& module, const std::string& file,
                         const ExportOptions& options) {
  TORCH_CHECK_VALUE(options.inputs() == ScriptInputs::kSeparate,
                    message(kWho, "inputs",
                            c10::str("separate for ", io::module_name(variant),
                                     ", whose Python class has no forward(x)"),
                            "single"));
  const int64_t embed = module.options.embed_size();
  const int64_t heads = module.options.heads();
  const int64_t head_dim = embed / heads;
  check_parameters_of({{"values.weight", module.values->weight, {head_dim, head_dim}},
                       {"keys.weight", module.keys->weight, {head_dim, head_dim}},
                       {"queries.weight", module.queries->weight, {head_dim, head_dim}},
                       {"fc_out.weight", module.fc_out->weight, {embed, heads * head_dim}},
                       {"fc_out.bias", module.fc_out->bias, {embed}}});
  export_layers(form_of(variant, embed, heads, options, module),
                {{"values", module.values},
                 {"keys", module.keys},
                 {"queries", module.queries},
                 {"fc_out", module.fc_out}},
                module.is_training(), file, options.freeze());
}

}  // namespace

void export_torchscript(const SharedProjectionAttentionImpl& module, const std::string& file,
                        const ExportOptions& options) {
  export_shared_heads(io::ScriptVariant::kSharedProjection, module, file, options);
}

void export_torchscript(const InferredLengthAttentionImpl& module, const std::string& file,
                        const ExportOptions& options) {
  export_shared_heads(io::ScriptVariant::kInferredLength, module, file, options);
}

void export_torchscript(const FullProjectionAttentionImpl& module, const std::string& file,
                        const ExportOptions& options) {
  const int64_t embed = module.options.embed_dim();
  check_parameters_of({{"q_linear.weight", module.q_linear->weight, {embed, embed}},
                       {"q_linear.bias", module.q_linear->bias, {embed}},
                       {"k_linear.weight", module.k_linear->weight, {embed, embed}},
                       {"k_linear.bias", module.k_linear->bias, {embed}},
                       {"v_linear.weight", module.v_linear->weight, {embed, embed}},
                       {"v_linear.bias", module.v_linear->bias, {embed}},
                       {"output_linear.weight", module.output_linear->weight, {embed, embed}},
                       {"output_linear.bias", module.output_linear->bias, {embed}}});
  export_layers(form_of(io::ScriptVariant::kFullProjection, embed, module.options.num_heads(),
                        options, module),
                {{"q_linear", module.q_linear},
                 {"k_linear", module.k_linear},
                 {"v_linear", module.v_linear},
                 {"output_linear", module.output_linear}},
                module.is_training(), file, options.freeze());
}

}  // namespace self_attention
