#include "batches.h"

#include <algorithm>

namespace language_model {

Batch make_batch(const Text& text, std::span<const std::int64_t> starts, std::int64_t context,
                 torch::Device device) {
  const torch::Tensor rows = torch::empty({std::ssize(starts), context + 1}, torch::kInt64);
  std::int64_t* row = rows.data_ptr<std::int64_t>();
  for (const std::int64_t start : starts) {
    std::ranges::copy(text.numbers().subspan(static_cast<std::size_t>(start), rows.size(1)), row);
    row += rows.size(1);
  }
  const torch::Tensor moved = rows.to(device);
  return {moved.narrow(1, 0, context).contiguous(), moved.narrow(1, 1, context).contiguous()};
}

std::span<const std::int64_t> part_of(std::span<const std::int64_t> all, int rank, int size) {
  const std::size_t begin = all.size() * rank / size;
  return all.subspan(begin, all.size() * (rank + 1) / size - begin);
}

}  // namespace language_model
