#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace self_attention::bench {

enum class Dtype : std::uint8_t { kFloat32, kFloat16, kBFloat16 };

/// One call of attention. Tensors lie in memory as modules give them: (N, L, H, d).
struct BenchCase {
  std::string name;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t query_length;
  std::int64_t key_length;
  std::int64_t head_dim;
  Dtype dtype = Dtype::kFloat32;
  bool causal = false;
  bool padding = false;  ///< a bool mask (N, 1, 1, K) that leaves out the last quarter of the keys
  bool trains = false;   ///< the gradients of query, key and value as well
};

/// The cases of `self-attention bench`, those of scripts/peer_cases.py.
const std::vector<BenchCase>& bench_cases();

/// Keys that the padding mask keeps.
std::int64_t kept_keys(const BenchCase& bench_case);

/// Floating-point operations of the two products that cannot be left out, and of the gradients'
/// five.
double needed_flops(const BenchCase& bench_case);

/// Bytes of keys and values.
std::int64_t read_bytes(const BenchCase& bench_case);

}  // namespace self_attention::bench
