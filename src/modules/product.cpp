#include "modules/product.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <self_attention/ops/cpu_target.h>
#include <torch/autograd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "modules/projection_plan.h"
#include "ops/attention_op.h"

namespace self_attention {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Scalars = c10::List<std::optional<at::Scalar>>;
/// X (…, a), W (b, a), bias, and what is done to the result: its name, numbers and algorithm.
using OneDnnLinear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                            std::string_view, Scalars, std::optional<std::string_view>);

/// oneDNN's linear layer on plain tensors, as torch.compile uses it; none where LibTorch has no
/// such op or one that takes other arguments.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& onednn_op() {
  static const auto op = []() -> std::optional<c10::TypedOperatorHandle<OneDnnLinear>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    try {
      return found->typed<OneDnnLinear>();
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }();
  return op;
}

bool has_narrow_mkl() {
#if defined(__x86_64__)
  return at::hasMKL() && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

/// Float32 in the CPU's memory, and neither a subclass of Python's nor a view that negates.
bool is_plain(const Tensor& tensor) {
  static const c10::DispatchKeySet plain = c10::DispatchKeySet(c10::DispatchKey::CPU) |
                                           c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                           c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);
  return (tensor.key_set() | plain) == plain && tensor.scalar_type() == torch::kFloat32;
}

/// Whether nothing but autograd and kernels would look at an op: no autocast, and no transform,
/// trace or mode of Python's.
bool is_plain_call() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return keys.excluded_.has(c10::DispatchKey::AutocastCPU) &&
         (keys.included_ | c10::default_included_set) == c10::default_included_set;
}

Tensor by_blas(const Tensor& rows, const Tensor& matrix, const std::optional<Tensor>& bias) {
  return bias ? at::addmm(*bias, rows, matrix) : at::mm(rows, matrix);
}

/// oneDNN on as many rows. It reads a bias as if it were contiguous, and takes the axes of a matrix
/// in either order, with no gaps or repeats.
Tensor call_onednn(const Tensor& rows, const Tensor& matrix, const std::optional<Tensor>& bias) {
  static const Scalars none;
  const Tensor dense = matrix.is_non_overlapping_and_dense() ? matrix : matrix.contiguous();
  const std::optional<Tensor> added = bias ? std::optional(bias->contiguous()) : std::nullopt;
  return onednn_op()->call(rows, dense.t(), added, "none", none, "");
}

/// Calls `visit(from, taken, times)` for `taken` rows after another, at most `most`, of `count`
/// that a product with sides a and b has. `times` multiplies them: of the last, that are too few,
/// by BLAS.
template <typename Visit>
void in_pieces(int64_t count, int64_t a, int64_t b, int64_t most, const Visit& visit) {
  for (int64_t from = 0; from < count;) {
    const int64_t left = count - from;
    const bool large = is_large_product(left, a, b);
    const int64_t taken = large ? std::min(rows_at_once(left), most) : left;
    visit(from, taken, large ? call_onednn : by_blas);
    from += taken;
  }
}

/// Below autograd: all rows at once, or in pieces.
Tensor by_onednn(const Tensor& rows, const Tensor& matrix, const std::optional<Tensor>& bias) {
  const int64_t count = rows.size(0);
  if (rows_at_once(count) == count) return call_onednn(rows, matrix, bias);
  const int64_t a = matrix.size(0);
  const int64_t b = matrix.size(1);
  Tensor output = at::empty({count, b}, rows.options());
  in_pieces(count, a, b, rows_of_piece(a, b), [&](int64_t from, int64_t taken, auto times) {
    output.narrow(0, from, taken).copy_(times(rows.narrow(0, from, taken), matrix, bias));
  });
  return output;
}

/// rowsᵀ times gradients, (a, b), below autograd. The long axis is the one that is summed, in
/// pieces of whose sums there are few.
Tensor weight_gradient(const Tensor& rows, const Tensor& gradients) {
  constexpr int64_t kLeast = 2048;
  const int64_t a = rows.size(1);
  const int64_t b = gradients.size(1);
  const int64_t most = std::max(kLeast, rows_of_piece(a, b));
  Tensor sum;
  in_pieces(rows.size(0), a, b, most, [&](int64_t from, int64_t taken, auto times) {
    const Tensor part =
        times(rows.narrow(0, from, taken).t(), gradients.narrow(0, from, taken), std::nullopt);
    sum = sum.defined() ? sum.add_(part) : part;
  });
  return sum;
}

/// A product by oneDNN and its gradients. Where those are recorded in turn they are BLAS's.
class OneDnnProduct : public torch::autograd::Function<OneDnnProduct> {
 public:
  static Variable forward(AutogradContext* context, const Variable& rows, const Variable& matrix,
                          const std::optional<Variable>& bias) {
    // What no gradient asks for is let go.
    context->save_for_backward(
        {matrix.requires_grad() ? rows : Tensor(), rows.requires_grad() ? matrix : Tensor()});
    context->saved_data["has_bias"] = bias.has_value();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return by_onednn(rows, matrix, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor& rows = saved[0];
    const Tensor& matrix = saved[1];
    const Tensor& gradient = gradients[0];
    const bool plain = at::globalContext().userEnabledMkldnn() && !torch::GradMode::is_enabled() &&
                       is_plain_call() && is_plain(gradient) && !has_tangent(gradient) &&
                       !has_tangent(rows) && !has_tangent(matrix);
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
    if (plain) guard.emplace();
    variable_list result(3);
    if (context->needs_input_grad(0)) {
      result[0] =
          plain ? by_onednn(gradient, matrix.t(), std::nullopt) : at::mm(gradient, matrix.t());
    }
    if (context->needs_input_grad(1)) {
      result[1] = plain ? weight_gradient(rows, gradient) : at::mm(rows.t(), gradient);
    }
    const bool has_bias = context->saved_data["has_bias"].toBool();
    if (has_bias && context->needs_input_grad(2)) result[2] = gradient.sum(0);
    return result;
  }
};

Tensor multiply(const Tensor& rows, const Tensor& matrix, const Tensor& bias, bool onednn) {
  const std::optional<Tensor> added = bias.defined() ? std::optional(bias) : std::nullopt;
  const bool plain = onednn && is_large_product(rows.size(0), rows.size(1), matrix.size(1)) &&
                     is_plain_call() && is_plain(rows) && is_plain(matrix) &&
                     (!added || is_plain(bias));
  if (!plain || has_tangent(rows) || has_tangent(matrix) || has_tangent(bias)) {
    return by_blas(rows, matrix, added);
  }
  if (records_gradients(rows, matrix, bias)) {
    return OneDnnProduct::apply(rows, matrix, added);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return by_onednn(rows, matrix, added);
}

}  // namespace

bool prefers_onednn() {
  static const bool has_both = has_narrow_mkl() && at::hasMKLDNN() && onednn_op();
  return has_both && cpu_target() == "avx512" && at::globalContext().userEnabledMkldnn();
}

Tensor product(const Tensor& rows, const Tensor& matrix, const Tensor& bias, bool onednn) {
  if (rows.dim() == 2) return multiply(rows.contiguous(), matrix, bias, onednn);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.back() = matrix.size(1);
  return multiply(rows.contiguous().view({-1, matrix.size(0)}), matrix, bias, onednn).view(sizes);
}

}  // namespace self_attention
