#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernel/attention_problem.h"

namespace self_attention::cpu {

/// The part of a mask that belongs to one head: queries by keys.
class HeadMask {
 public:
  HeadMask() = default;
  HeadMask(const MaskView& mask, std::size_t batch, std::size_t head);

  bool exists() const { return data_ != nullptr; }
  /// Whether all queries see the same mask, or all keys.
  bool same_for_queries() const { return query_stride_ == 0; }
  bool same_for_keys() const { return key_stride_ == 0; }

  /// Bytes that are not zero where `query` keeps keys [from, from + count): the mask's own memory
  /// where that holds them side by side, else `buffer` (count bytes) filled.
  const std::uint8_t* row(std::size_t query, std::size_t from, std::size_t count,
                          std::uint8_t* buffer) const;

 private:
  const std::uint8_t* data_ = nullptr;
  std::int64_t query_stride_ = 0;  // in bytes
  std::int64_t key_stride_ = 0;
  std::uint8_t element_bytes_ = 1;
  bool has_sign_ = false;
};

}  // namespace self_attention::cpu
