#include "backends/cpu/kernel/keep_mask.h"

#include <cstring>

namespace self_attention::cpu {
namespace {

/// Bits are read as they lie: a mask of NaN keeps, whatever the floating-point mode is.
template <typename Bits>
void fill(const std::uint8_t* data, std::int64_t stride, std::size_t count, bool has_sign,
          std::uint8_t* keep) {
  const Bits ignored = has_sign ? static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1)) : Bits{0};
  const auto relevant = static_cast<Bits>(~ignored);
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + static_cast<std::int64_t>(i) * stride, sizeof(bits));
    keep[i] = (bits & relevant) != 0;
  }
}

}  // namespace

HeadMask::HeadMask(const MaskView& mask, std::size_t batch, std::size_t head)
    : element_bytes_(mask.element_bytes), has_sign_(mask.has_sign) {
  if (mask.data == nullptr) return;
  const auto bytes = static_cast<std::int64_t>(mask.element_bytes);
  const std::int64_t offset = static_cast<std::int64_t>(batch) * mask.strides[0] +
                              static_cast<std::int64_t>(head) * mask.strides[1];
  data_ = static_cast<const std::uint8_t*>(mask.data) + offset * bytes;
  query_stride_ = mask.strides[2] * bytes;
  key_stride_ = mask.strides[3] * bytes;
}

const std::uint8_t* HeadMask::row(std::size_t query, std::size_t from, std::size_t count,
                                  std::uint8_t* buffer) const {
  const std::uint8_t* data = data_ + static_cast<std::int64_t>(query) * query_stride_ +
                             static_cast<std::int64_t>(from) * key_stride_;
  if (element_bytes_ == 1 && key_stride_ == 1) return data;
  switch (element_bytes_) {
    case 1:
      fill<std::uint8_t>(data, key_stride_, count, has_sign_, buffer);
      break;
    case 2:
      fill<std::uint16_t>(data, key_stride_, count, has_sign_, buffer);
      break;
    case 4:
      fill<std::uint32_t>(data, key_stride_, count, has_sign_, buffer);
      break;
    default:
      fill<std::uint64_t>(data, key_stride_, count, has_sign_, buffer);
  }
  return buffer;
}

}  // namespace self_attention::cpu
