#include "tools/parity/run_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <self_attention/self_attention.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

#include "io/text.h"
#include "io/torch_types.h"

namespace self_attention::parity {
namespace {

/// Something that makes a case fail other than a number.
class CaseFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A module behind one signature.
struct Attention {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor& values, const torch::Tensor& keys,
                              const torch::Tensor& query, const torch::Tensor& mask)>
      forward;
};

self_attention::Backend module_backend(Backend backend) {
  switch (backend) {
    case Backend::kEager:
      return self_attention::Backend::Eager;
    case Backend::kAuto:
      return self_attention::Backend::Auto;
    case Backend::kFused:
      return self_attention::Backend::Fused;
  }
  throw std::logic_error("unknown backend");
}

template <typename Holder>
Attention make_attention(const CaseRecord& record, Backend backend) {
  using Options = decltype(std::declval<Holder>()->options);
  Holder holder(Options(record.embed, record.heads).backend(module_backend(backend)));
  return {holder.ptr(),
          [holder](const auto&... tensors) mutable { return holder->forward(tensors...); }};
}

Attention make_attention(const CaseRecord& record, Backend backend) {
  switch (record.variant) {
    case Variant::kSharedProjection:
      return make_attention<SharedProjectionAttention>(record, backend);
    case Variant::kFullProjection:
      return make_attention<FullProjectionAttention>(record, backend);
    case Variant::kInferredLength:
      return make_attention<InferredLengthAttention>(record, backend);
  }
  throw std::logic_error("unknown variant");
}

/// The tensor with its strides, gaps included.
torch::Tensor to_tensor(const StridedTensor& source, torch::Device device) {
  const auto elements = source.storage.size() / io::element_size(source.type);
  torch::Tensor storage =
      torch::empty({static_cast<std::int64_t>(elements)}, io::scalar_type(source.type));
  if (elements > 0) std::memcpy(storage.data_ptr(), source.storage.data(), source.storage.size());
  // To the device before the strides: a copy of a strided tensor would be made dense.
  return storage.to(device).as_strided(source.shape, source.strides);
}

std::vector<double> to_doubles(const torch::Tensor& tensor) {
  const torch::Tensor dense = tensor.detach().to(torch::kCPU).to(torch::kFloat64).contiguous();
  const double* data = dense.const_data_ptr<double>();
  return {data, data + dense.numel()};
}

std::vector<double> to_doubles(const StridedTensor& tensor) {
  return to_doubles(to_tensor(tensor, torch::kCPU));
}

/// How the modules say that Backend::Fused cannot run their arguments; the reason follows.
constexpr std::string_view kIneligible =
    "backend: expected arguments that the fused kernel can run, got others: ";

/// One run of one case.
class CaseRun {
 public:
  CaseRun(const ReferenceCase& reference, const Target& target)
      : reference_(reference),
        record_(*reference.record),
        device_(target.device == Device::kCpu ? torch::kCPU : torch::kCUDA),
        fused_(target.backend == Backend::kFused) {
    result_.record = &record_;
    result_.target = target;
    result_.rule = rule_for(record_, target);
  }

  CaseResult run() {
    if (record_.owes == Owes::kRefuse) {
      judge_refusal();
    } else {
      judge_results();
    }
    return std::move(result_);
  }

 private:
  void fail(std::string message) {
    result_.verdict = Verdict::kFailed;
    result_.message = std::move(message);
  }

  void judge_refusal() {
    std::string message;
    try {
      build();
      forward();
      return fail(fmt::format("expected an error with {}, the library returned a result",
                              words_text(record_.words)));
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    } catch (const std::exception& error) {
      return fail(fmt::format("expected a c10::Error, got another exception: {}",
                              io::in_quotes(error.what())));
    }
    std::vector<std::string> missing;
    for (const std::string& word : record_.words) {
      if (message.find(word) == std::string::npos) missing.push_back(word);
    }
    if (missing.empty()) return;
    fail(fmt::format("expected {} in the error, got {}", words_text(missing),
                     io::in_quotes(message)));
  }

  static std::string words_text(const std::vector<std::string>& words) {
    std::vector<std::string> texts;
    for (const std::string& word : words) texts.push_back(io::in_quotes(word));
    return fmt::format("{}", fmt::join(texts, ", "));
  }

  void judge_results() {
    try {
      build();
      const torch::Tensor output = forward();
      if (class_raised()) {
        return fail(fmt::format("the class raised {}, the library did not",
                                io::in_quotes(record_.source_error)));
      }
      compare_all(output);
      if (result_.target.backend == Backend::kAuto) {
        // Which runs another path where no gradients are recorded.
        const torch::NoGradGuard no_grad;
        fused_ = device_.is_cpu();
        compare("output", forward(), {Quantity::kOutput, scale_of("output")});
        judge();
      }
    } catch (const CaseFailure& error) {
      fail(error.what());
    } catch (const c10::Error& error) {
      const std::string what = error.what_without_backtrace();
      const std::size_t reason = what.find(kIneligible);
      if (result_.target.backend == Backend::kFused && reason != std::string::npos) {
        result_.verdict = Verdict::kSkipped;
        result_.message = what.substr(reason + kIneligible.size());
      } else {
        fail_raised(what);
      }
    } catch (const std::exception& error) {
      fail_raised(error.what());
    }
  }

  void fail_raised(std::string_view what) {
    const std::string library = fmt::format("the library raised {}", io::in_quotes(what));
    fail(class_raised() ? fmt::format("owed is a result, but the class raised {} and {}",
                                      io::in_quotes(record_.source_error), library)
                        : library);
  }

  bool class_raised() const {
    return record_.owes == Owes::kEqual && !record_.source_error.empty();
  }

  void build() {
    attention_ = make_attention(record_, result_.target.backend);
    attention_.module->to(io::scalar_type(record_.dtype));
    attention_.module->to(device_);
    const auto stored = reference_.starting_with(kParameterPrefix);
    if (!stored.empty()) load(stored);
  }

  /// Puts the stored values into the module's parameters, which must be the same set.
  void load(const std::map<std::string, const StridedTensor*>& stored) {
    const torch::NoGradGuard no_grad;
    auto parameters = attention_.module->named_parameters();
    for (const auto& [name, tensor] : stored) {
      if (!parameters.contains(name)) {
        throw CaseFailure(fmt::format("the class has a parameter {}, the library has {}",
                                      io::in_quotes(name), fmt::join(parameters.keys(), ", ")));
      }
      torch::Tensor& parameter = parameters[name];
      require_shape(role(kParameterPrefix, name), parameter, tensor->shape);
      parameter.copy_(to_tensor(*tensor, device_));
    }
    for (const std::string& name : parameters.keys()) {
      if (!stored.contains(name)) {
        throw CaseFailure(fmt::format("the class has no parameter {}, the library has", name));
      }
    }
  }

  torch::Tensor forward() {
    for (const auto& [name, tensor] : reference_.starting_with(kInputPrefix)) {
      inputs_[name] = to_tensor(*tensor, device_);
      if (record_.owes != Owes::kRefuse) inputs_[name].requires_grad_();
    }
    torch::Tensor mask;
    if (const StridedTensor* stored = reference_.find("mask")) mask = to_tensor(*stored, device_);
    const auto input = [&](const std::string& argument) {
      const auto found = record_.arguments.find(argument);
      return found == record_.arguments.end() ? torch::Tensor() : inputs_.at(found->second);
    };
    const bool inferred = record_.variant == Variant::kInferredLength;
    return attention_.forward(input("values"), input("keys"), input(inferred ? "queries" : "query"),
                              mask);
  }

  void compare_all(const torch::Tensor& output) {
    compare("output", output, {Quantity::kOutput, scale_of("output")});
    std::vector<std::string> names;
    std::vector<torch::Tensor> leaves;
    for (const auto& [name, tensor] : inputs_) {
      names.push_back(name);
      leaves.push_back(tensor);
    }
    for (const auto& item : attention_.module->named_parameters()) {
      names.push_back(item.key());
      leaves.push_back(item.value());
    }
    const torch::Tensor cotangent = to_tensor(reference_.tensors.at("cotangent"), device_);
    const auto gradients = torch::autograd::grad({output}, leaves, {cotangent},
                                                 /*retain_graph=*/std::nullopt,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
    const Measure measure{Quantity::kGradient, scale_of(kGradientPrefix)};
    for (std::size_t i = 0; i < names.size(); ++i) {
      compare(role(kGradientPrefix, names[i]), gradients[i], measure);
    }
    judge();
  }

  void judge() {
    if (const TensorResult* worst = result_.worst(); !worst->comparison.passed) {
      fail(describe(*worst, result_));
    }
  }

  /// What an error is measured with.
  struct Measure {
    Quantity quantity;
    double scale;
  };

  void compare(const std::string& name, const torch::Tensor& actual, const Measure& measure) {
    const StridedTensor* expected = reference_.find(expected_role(name));
    if (expected == nullptr && !actual.defined()) return;
    if (expected == nullptr || !actual.defined()) {
      throw CaseFailure(fmt::format("{}: the {} gives none", name,
                                    expected == nullptr ? "Python class" : "library"));
    }
    require_shape(name, actual, expected->shape);
    if (actual.scalar_type() != io::scalar_type(record_.dtype)) {
      throw CaseFailure(fmt::format("{}: expected {}, got {}", name,
                                    io::element_name(record_.dtype),
                                    c10::toString(actual.scalar_type())));
    }
    std::vector<double> got = to_doubles(actual);
    const std::vector<double> wanted = to_doubles(*expected);
    if (may_ignore_nonfinite()) got = with_nan_of(got, wanted);
    Comparison comparison;
    if (result_.rule == Rule::kBitEqual) {
      comparison = compare_bits(got, wanted);
    } else {
      comparison = compare_within(got, wanted, allowed(name, measure, wanted));
    }
    result_.tensors.push_back({name, measure.quantity, expected->shape, comparison, measure.scale});
  }

  double allowed(const std::string& name, const Measure& measure,
                 const std::vector<double>& wanted) const {
    const bool narrow =
        record_.dtype == io::ElementType::kBFloat16 || record_.dtype == io::ElementType::kFloat16;
    if (fused_ && narrow) {
      const bool output = measure.quantity == Quantity::kOutput;
      return measure.scale *
             tolerance(record_.dtype, output ? Quantity::kFusedOutput : Quantity::kFusedGradient);
    }
    const double listed = tolerance(record_.dtype, measure.quantity) * measure.scale;
    if (result_.rule != Rule::kFloat64 || record_.owes != Owes::kEqual) return listed;
    const std::vector<double> recorded = to_doubles(reference_.tensors.at(name));
    return std::max(listed, 2 * largest_finite_error(recorded, wanted));
  }

  /// Numbers that are not finite and that the mask hides make NaN in the Python class; a fused
  /// kernel may leave them out.
  bool may_ignore_nonfinite() const {
    return result_.target.backend != Backend::kEager &&
           record_.mask_kind.starts_with("nonfinite_masked");
  }

  /// The role of what `name` is compared with.
  std::string expected_role(std::string_view name) const {
    return result_.rule == Rule::kFloat64 ? role(kFloat64Prefix, name) : std::string(name);
  }

  /// The largest magnitude among the expected tensors whose names start with `prefix`. A case's
  /// gradients share it: they are computed from one another, and where one is small because its
  /// terms cancel (a key's bias has no effect at all) the others still set its rounding error.
  double scale_of(std::string_view prefix) const {
    double scale = 1;
    for (const auto& [name, tensor] : reference_.starting_with(expected_role(prefix))) {
      scale = std::max(scale, magnitude(to_doubles(*tensor)));
    }
    return scale;
  }

  static void require_shape(const std::string& name, const torch::Tensor& actual,
                            const std::vector<std::int64_t>& expected) {
    if (actual.sizes() == expected) return;
    throw CaseFailure(fmt::format("{}: expected shape {}, got {}", name, io::shape_text(expected),
                                  io::shape_text(actual.sizes())));
  }

  const ReferenceCase& reference_;
  const CaseRecord& record_;
  torch::Device device_;
  bool fused_;  // whether the fused path runs, where it takes the dtype
  Attention attention_;
  std::map<std::string, torch::Tensor> inputs_;
  CaseResult result_;
};

/// The reshapes that InferredLengthAttention warns about are meant here.
class IgnoreWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

CaseResult run_case(const ReferenceCase& reference, const Target& target) {
  IgnoreWarnings ignore;
  const c10::WarningUtils::WarningHandlerGuard guard(&ignore);
  return CaseRun(reference, target).run();
}

}  // namespace self_attention::parity
