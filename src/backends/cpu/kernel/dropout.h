#pragma once

#include <cmath>
#include <cstdint>

namespace self_attention::cpu {

/// Which weights are dropped: those whose hash of seed, row and key is below `threshold`, and so
/// the gradients find the same ones again without a table of them.
struct Dropout {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;  ///< p · 2³²; 0: none is dropped
  float scale = 1;              ///< of those that stay, 1 / (1 − p)
};

/// Dropout with probability `p`, from 0 to 1. Everything is dropped at 1.
inline Dropout make_dropout(double p, std::uint64_t seed) {
  const double threshold = std::fmin(std::round(p * 0x1p32), 0xFFFFFFFFp0);
  return {seed, static_cast<std::uint32_t>(threshold),
          p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0F};
}

/// What the hash of a row's keys starts from. Rows are numbered (n · H + h) · Q + q.
struct RowSeeds {
  std::uint32_t first;
  std::uint32_t second;
};

/// Constants of SplitMix64 (Steele, Lea and Flood 2014).
inline constexpr std::uint64_t kRowStep = 0x9E3779B97F4A7C15;
inline constexpr std::uint64_t kRowFirst = 0xBF58476D1CE4E5B9;
inline constexpr std::uint64_t kRowSecond = 0x94D049BB133111EB;

inline RowSeeds row_seeds(std::uint64_t seed, std::uint64_t row) {
  std::uint64_t z = seed + (row + 1) * kRowStep;
  z = (z ^ (z >> 30U)) * kRowFirst;
  z = (z ^ (z >> 27U)) * kRowSecond;
  z ^= z >> 31U;
  return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32U)};
}

/// Multipliers of a hash of 32 bits with little bias, found by search (Wellons 2018).
inline constexpr std::uint32_t kHashFirst = 0x7FEB352D;
inline constexpr std::uint32_t kHashSecond = 0x846CA68B;

inline std::uint32_t dropout_hash(const RowSeeds& seeds, std::uint32_t key) {
  std::uint32_t h = key ^ seeds.first;
  h = (h ^ (h >> 16U)) * kHashFirst;
  h = ((h ^ (h >> 15U)) + seeds.second) * kHashSecond;
  return h ^ (h >> 16U);
}

/// What a weight is multiplied with.
inline float dropout_factor(const Dropout& dropout, const RowSeeds& seeds, std::uint32_t key) {
  return dropout_hash(seeds, key) < dropout.threshold ? 0.0F : dropout.scale;
}

}  // namespace self_attention::cpu
