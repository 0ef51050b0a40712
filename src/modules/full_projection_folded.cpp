// The forward pass of FullProjectionAttention by algebra that is exact but for rounding.
//
// A key's bias adds the same to all scores of a query and so cancels in the softmax. A value's bias
// comes out of the weighted sum as it is, where the weights sum to one.

#include <ATen/ops/addmv.h>
#include <ATen/ops/bmm.h>

#include "modules/full_projection.h"
#include "modules/product.h"
#include "modules/projection_plan.h"
#include "modules/wide_arithmetic.h"

namespace self_attention {
namespace {

class FoldedForward {
 public:
  explicit FoldedForward(const FullCall& call)
      : inputs_(call.inputs),
        p_(call.parameters),
        scores_(call.scores),
        below_autograd_(inputs_.values, inputs_.keys_or_values(), inputs_.query_or_values(),
                        p_.q_weight, p_.q_bias, p_.k_weight, p_.k_bias, p_.v_weight, p_.v_bias,
                        p_.output_weight, p_.output_bias),
        wide_(call.parameters.output_bias) {}

  torch::Tensor run() {
    const ProjectionSizes sizes = {scores_.batch, scores_.query_length, scores_.key_length,
                                   p_.num_heads,  p_.head_dim(),        p_.embed_dim()};
    output_weight_ = wide_(p_.output_weight);
    output_bias_ = wide_(p_.output_bias);
    // Raw keys stand for every head, which the kernel reads and the formula for gradients would
    // copy.
    const bool raw = !records() && sums_to_one() && leaves_keys_raw(sizes);
    const torch::Tensor merged = raw ? over_raw_keys() : over_projected_keys(sizes);
    return wide_.rounded(product(merged, output_weight_.t(), output_bias_))
        .view({scores_.batch, scores_.query_length, p_.embed_dim()});
  }

 private:
  bool records() const { return below_autograd_.records(); }

  /// Whether a row's weights do, which the value's bias then comes through as it is.
  bool sums_to_one() const { return p_.dropout_p == 0; }

  /// (N, L, E) -> (N, L, H, d).
  torch::Tensor project(const torch::Tensor& rows, const torch::Tensor& weight,
                        const torch::Tensor& bias) const {
    // Products of two axes take fewer operations.
    return product(wide_(rows).reshape({-1, p_.embed_dim()}), wide_(weight).t(), bias)
        .view({rows.size(0), rows.size(1), p_.num_heads, p_.head_dim()});
  }

  torch::Tensor query() const {
    return project(inputs_.query_or_values(), p_.q_weight, wide_(p_.q_bias));
  }

  /// (N, Q, H, …).
  torch::Tensor attend(const torch::Tensor& query, const torch::Tensor& key,
                       const torch::Tensor& value) const {
    return call_checked_attention(
        {query, key, value, inputs_.mask, 1 / p_.divisor(), p_.is_causal, p_.dropout_p});
  }

  torch::Tensor over_projected_keys(const ProjectionSizes& sizes) {
    // Times zero, for a gradient of zeros and not none.
    const torch::Tensor key_bias = records() ? wide_(p_.k_bias) * 0 : torch::Tensor();
    const torch::Tensor keys = project(inputs_.keys_or_values(), p_.k_weight, key_bias);
    // Moved, its gradient would not be NaN where that of the values is.
    const bool moved = !records() && sums_to_one() && moves_value_bias(sizes);
    const torch::Tensor values =
        project(inputs_.values, p_.v_weight, moved ? torch::Tensor() : wide_(p_.v_bias));
    if (moved) output_bias_ = at::addmv(output_bias_, output_weight_, wide_(p_.v_bias));
    return merge(attend(query(), keys, values));
  }

  torch::Tensor over_raw_keys() {
    const std::vector<int64_t> by_head = {p_.num_heads, p_.head_dim(), p_.embed_dim()};
    const torch::Tensor key_weight = wide_(p_.k_weight).reshape(by_head);
    const torch::Tensor value_weight = wide_(p_.v_weight).reshape(by_head);
    torch::Tensor keys = inputs_.keys_or_values();
    torch::Tensor values = inputs_.values;
    wide_.match(keys, values);
    const auto for_every_head = [&](const torch::Tensor& raw) {
      return raw.unsqueeze(2).expand({-1, -1, p_.num_heads, -1});
    };
    const torch::Tensor attended =
        attend(times(query(), key_weight), for_every_head(keys), for_every_head(values));
    return merge(times(attended, value_weight.transpose(1, 2))) + wide_(p_.v_bias);
  }

  /// (N, Q, H, a) times each head's (a, b) of (H, a, b).
  torch::Tensor times(const torch::Tensor& rows, const torch::Tensor& matrices) const {
    return at::bmm(rows.flatten(0, 1).transpose(0, 1), matrices)
        .transpose(0, 1)
        .view({scores_.batch, scores_.query_length, p_.num_heads, matrices.size(2)});
  }

  /// (N, Q, H, d) -> (N Q, E).
  torch::Tensor merge(const torch::Tensor& attended) const {
    return attended.reshape({scores_.batch * scores_.query_length, p_.embed_dim()});
  }

  const FullInputs& inputs_;
  const FullParameters& p_;
  const ScoreShape& scores_;
  BelowAutograd below_autograd_;
  WideArithmetic wide_;
  torch::Tensor output_weight_;
  torch::Tensor output_bias_;
};

}  // namespace

torch::Tensor folded_full_projection(const FullCall& call) { return FoldedForward(call).run(); }

}  // namespace self_attention
