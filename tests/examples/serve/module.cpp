#include "module.h"

#include <self_attention/self_attention.h>

#include <tuple>

namespace serve {
namespace {

template <typename Options, typename Holder>
LibraryModule make(const ModelInfo& info) {
  Holder holder(Options(info.embed, info.heads).is_causal(info.is_causal));
  holder->to(info.dtype);
  const auto forward = [holder, masked = info.takes_mask](Arguments arguments) mutable {
    const torch::Tensor mask = masked ? arguments.back() : torch::Tensor();
    if (masked) arguments.pop_back();
    arguments.resize(3);  // undefined ones where forward takes x alone
    return holder->forward(arguments[0], arguments[1], arguments[2], mask);
  };
  return {holder.ptr(), forward};
}

}  // namespace

LibraryModule make_module(const ModelInfo& info) {
  using namespace self_attention;
  if (info.variant == "full_projection") {
    return make<FullProjectionAttentionOptions, FullProjectionAttention>(info);
  }
  if (info.variant == "inferred_length") {
    return make<InferredLengthAttentionOptions, InferredLengthAttention>(info);
  }
  return make<SharedProjectionAttentionOptions, SharedProjectionAttention>(info);
}

void check_shapes(const ModelInfo& info, const Arguments& arguments) {
  using namespace self_attention;
  // On meta tensors, which have no numbers, the library checks and computes nothing.
  const auto meta = [](torch::IntArrayRef sizes, torch::ScalarType dtype) {
    return torch::empty(sizes, torch::dtype(dtype).device(torch::kMeta));
  };
  Arguments on_meta;
  for (const torch::Tensor& tensor : arguments) {
    on_meta.push_back(meta(tensor.sizes(), tensor.scalar_type()));
  }
  if (!info.takes_mask) on_meta.emplace_back();
  const auto& [values, keys, query, mask] =
      std::tie(on_meta[0], on_meta[1], on_meta[2], on_meta[3]);
  const torch::Tensor whole = meta({info.embed, info.embed}, info.dtype);
  const torch::Tensor bias = meta({info.embed}, info.dtype);
  if (info.variant == "full_projection") {
    functional::full_projection_attention(values, keys, query, mask, whole, bias, whole, bias,
                                          whole, bias, whole, bias, info.heads);
    return;
  }
  const std::int64_t head_dim = info.embed / info.heads;
  const torch::Tensor shared = meta({head_dim, head_dim}, info.dtype);
  const auto check = info.variant == "inferred_length" ? functional::inferred_length_attention
                                                       : functional::shared_projection_attention;
  check(values, keys, query, mask, shared, shared, shared, whole, bias, info.heads, Backend::Auto,
        info.is_causal, /*dropout_p=*/0);
}

Weights read_weights(const ModelInfo& info, const std::string& path) {
  const LibraryModule module = make_module(info);
  self_attention::load_state_dict(*module.module, path);
  Weights weights;
  for (const auto& parameter : module.module->named_parameters()) {
    weights[parameter.key()] = parameter.value().detach();
  }
  return weights;
}

}  // namespace serve
