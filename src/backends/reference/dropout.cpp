#include "backends/reference/dropout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>

#include <limits>

#include "backends/cpu/kernel/dropout.h"

namespace self_attention::reference {
namespace {

/// x ^ (x >> bits) of numbers without a sign, of which LibTorch has too few operations.
template <typename Signed>
torch::Tensor xor_shifted(const torch::Tensor& x, int bits) {
  constexpr int kWidth = sizeof(Signed) * 8;
  return x.bitwise_xor(
      x.bitwise_right_shift(bits).bitwise_and_((Signed{1} << (kWidth - bits)) - 1));
}

/// cpu::row_seeds() of all rows, (rows, 1) and int32 each.
std::pair<torch::Tensor, torch::Tensor> row_seeds(const torch::Tensor& seed,
                                                  const torch::Tensor& rows) {
  const auto times = [](const torch::Tensor& x, std::uint64_t factor) {
    return x * static_cast<std::int64_t>(factor);
  };
  torch::Tensor z = seed + times(rows + 1, cpu::kRowStep);
  z = times(xor_shifted<std::int64_t>(z, 30), cpu::kRowFirst);
  z = times(xor_shifted<std::int64_t>(z, 27), cpu::kRowSecond);
  z = xor_shifted<std::int64_t>(z, 31).unsqueeze(-1);
  return {z.to(torch::kInt32), z.bitwise_right_shift(32).to(torch::kInt32)};
}

}  // namespace

torch::Tensor draw_seed() {
  return at::randint(std::numeric_limits<std::int64_t>::max(), {},
                     torch::TensorOptions().dtype(torch::kInt64));
}

torch::Tensor drop(const torch::Tensor& weights, double p, const torch::Tensor& seed) {
  const cpu::Dropout dropout = cpu::make_dropout(p, 0);
  const auto count = [&](int64_t size, torch::ScalarType type) {
    return at::arange(size, torch::TensorOptions().dtype(type).device(weights.device()));
  };
  const auto rows = weights.size(0) * weights.size(1) * weights.size(2);
  const auto [first, second] = row_seeds(seed, count(rows, torch::kInt64));
  const auto times = [](const torch::Tensor& x, std::uint32_t factor) {
    return x * static_cast<std::int32_t>(factor);
  };
  torch::Tensor h = count(weights.size(3), torch::kInt32).bitwise_xor(first);
  h = times(xor_shifted<std::int32_t>(h, 16), cpu::kHashFirst);
  h = times(xor_shifted<std::int32_t>(h, 15) + second, cpu::kHashSecond);
  h = xor_shifted<std::int32_t>(h, 16);
  // Flipped, the highest bit makes an order of numbers with a sign that of those without.
  constexpr std::uint32_t kHighest = 0x80000000;
  const torch::Tensor kept = h.bitwise_xor(static_cast<std::int32_t>(kHighest)) >=
                             static_cast<std::int32_t>(dropout.threshold ^ kHighest);
  return weights * kept.view(weights.sizes()) * (p < 1 ? 1 / (1 - p) : 0.0);
}

}  // namespace self_attention::reference
