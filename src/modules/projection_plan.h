#pragma once

#include <cstdint>

namespace self_attention {

/// What decides where projections are cheapest.
struct ProjectionSizes {
  std::int64_t batch;         ///< N
  std::int64_t query_length;  ///< Q
  std::int64_t key_length;    ///< K
  std::int64_t heads;         ///< H
  std::int64_t head_dim;      ///< d
  std::int64_t embed;         ///< E, the rows of the output's weight
};

/// Where W_q and W_k go when all heads share them: (q W_qᵀ)(k W_kᵀ)ᵀ = q (W_qᵀ W_k) kᵀ.
enum class ScoreProjection : std::uint8_t {
  kQueryTwice,  ///< (q W_qᵀ) W_k
  kQueryOnce,   ///< q (W_qᵀ W_k)
  kKeyOnce,     ///< k (W_kᵀ W_q)
};

/// Where W_v goes: A (v W_vᵀ) = (A v) W_vᵀ, and the output's weight can take it up.
enum class ValueProjection : std::uint8_t { kValues, kAttended, kOutput };

struct SharedHeadPlan {
  ScoreProjection scores;
  ValueProjection values;
};

/// The cheapest places for heads that share (d, d) projections.
///
/// Every place costs d² multiply-adds a row, reads the row and writes it, so the count of rows
/// decides:
///
///     kQueryTwice 2NQH     kQueryOnce NQH + d     kKeyOnce NKH + d
///     kValues NKH          kAttended NQH          kOutput EH
///
/// At equal cost the one that leaves keys and values as they are. kOutput only where it saves 2^20
/// multiply-adds: else a query with one key left comes out as that key's projection to the bit.
SharedHeadPlan plan_shared_heads(const ProjectionSizes& sizes);

/// Whether full projections of keys and values, (E, E), are left out in favour of raw keys and
/// values, E wide, for every head:
///
///     (q W_q,hᵀ)(k W_k,hᵀ)ᵀ = ((q W_q,hᵀ) W_k,h) kᵀ     A (v W_v,hᵀ) = (A v) W_v,hᵀ
///
/// In multiply-adds, 16 for a number that goes to memory and comes back, and those of few queries
/// over wide keys twice, since they run at half the speed:
///
///     projected 2NKE² + 2NQKE + 16 · 2NKE     raw 2NQE² + 2 · 2NQKEH
///
/// which few queries against many keys win. Never without keys.
bool leaves_keys_raw(const ProjectionSizes& sizes);

/// Whether v's bias is added to the output's, W_o b_v + b_o, E² multiply-adds, and not to NK rows
/// of E values. A row's weights must sum to one: never without keys.
bool moves_value_bias(const ProjectionSizes& sizes);

/// Whether a product of n rows by (a, b) is worth a call of oneDNN, which costs 10 µs: from 2^21
/// multiply-adds, where all sides are 8 or more.
bool is_large_product(std::int64_t n, std::int64_t a, std::int64_t b);

/// How many of n rows a call of oneDNN takes, which keeps a program and buffers for every shape
/// that it has met: n to four significant bits, so that there are eight numbers between n and 2n.
std::int64_t rows_at_once(std::int64_t n);

/// A piece of the rows of a product by (a, b), a and b positive, where they are not taken at once:
/// the power of two of them that makes 2^25 multiply-adds, few enough that the result is still in
/// the cache when it is copied; but 256 at least, since each piece reads the whole matrix.
std::int64_t rows_of_piece(std::int64_t a, std::int64_t b);

}  // namespace self_attention
