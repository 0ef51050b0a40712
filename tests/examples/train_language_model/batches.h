#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>

#include "text.h"

namespace language_model {

/// Windows of a text: what the model reads (N, L), and the character after each (N, L).
struct Batch {
  torch::Tensor inputs;
  torch::Tensor targets;
};

Batch make_batch(const Text& text, std::span<const std::int64_t> starts, std::int64_t context,
                 torch::Device device);

/// The part of `all` that belongs to a rank, equal parts where their number allows it.
std::span<const std::int64_t> part_of(std::span<const std::int64_t> all, int rank, int size);

}  // namespace language_model
