// The forward pass of modules whose heads share their projections, by algebra that is exact but for
// rounding: keys and values are read as they are, and projections done where they are cheapest.

#include <ATen/ops/mm.h>

#include "modules/product.h"
#include "modules/projection_plan.h"
#include "modules/shared_heads.h"
#include "modules/wide_arithmetic.h"
#include "ops/attention_op.h"

namespace self_attention {

torch::Tensor folded_shared_heads(const SharedHeadInputs& inputs,
                                  const SharedHeadParameters& parameters,
                                  const ScoreShape& scores) {
  const auto& [batch, heads, query_length, key_length] = scores;
  const BelowAutograd scope(inputs.values, inputs.keys, inputs.query, parameters.values_weight,
                            parameters.keys_weight, parameters.queries_weight,
                            parameters.fc_out_weight, parameters.fc_out_bias);
  const int64_t head_dim = parameters.head_dim();
  const int64_t embed = parameters.embed_size();
  const SharedHeadPlan plan =
      plan_shared_heads({batch, query_length, key_length, heads, head_dim, embed});
  const WideArithmetic wide(parameters.fc_out_bias);
  const torch::Tensor values_weight = wide(parameters.values_weight);
  const torch::Tensor keys_weight = wide(parameters.keys_weight);
  const torch::Tensor queries_weight = wide(parameters.queries_weight);
  torch::Tensor values = inputs.values.reshape({batch, key_length, heads, head_dim});
  torch::Tensor keys = inputs.keys.reshape({batch, key_length, heads, head_dim});
  // A row for each head: products of two axes take fewer operations.
  torch::Tensor query = wide(inputs.query).reshape({-1, head_dim});

  switch (plan.scores) {
    case ScoreProjection::kQueryTwice:
      query = product(product(query, queries_weight.t()), keys_weight);
      break;
    case ScoreProjection::kQueryOnce:
      query = product(query, at::mm(queries_weight.t(), keys_weight));
      break;
    case ScoreProjection::kKeyOnce:
      keys = product(wide(keys), at::mm(keys_weight.t(), queries_weight));
      break;
  }
  if (plan.values == ValueProjection::kValues) values = product(wide(values), values_weight.t());
  wide.match(keys, values);
  torch::Tensor attended = call_checked_attention(
      {query.view({batch, query_length, heads, head_dim}), keys, values, inputs.mask,
       1 / parameters.divisor(), parameters.is_causal, parameters.dropout_p});
  query.reset();
  if (plan.values == ValueProjection::kAttended) {
    attended = product(attended.reshape({-1, head_dim}), values_weight.t());
  }
  torch::Tensor fc_out_weight = wide(parameters.fc_out_weight);
  if (plan.values == ValueProjection::kOutput) {
    fc_out_weight = product(fc_out_weight.reshape({embed, heads, head_dim}), values_weight)
                        .view({embed, heads * head_dim});
  }
  const torch::Tensor merged = attended.reshape({batch * query_length, heads * head_dim});
  return wide.rounded(product(merged, fc_out_weight.t(), wide(parameters.fc_out_bias)))
      .view({batch, query_length, embed});
}

}  // namespace self_attention
