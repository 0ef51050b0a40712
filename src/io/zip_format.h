#pragma once

#include <cstdint>

// The numbers of the zip format that its reader and its writer share.
namespace self_attention::io::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50;
inline constexpr std::uint32_t kCentralSignature = 0x02014b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;
inline constexpr std::uint32_t kLocatorSignature = 0x07064b50;

// Bytes of each record without its name, extra fields and comment.
inline constexpr std::uint64_t kLocalBytes = 30;
inline constexpr std::uint64_t kCentralBytes = 46;
inline constexpr std::uint64_t kEndBytes = 22;
inline constexpr std::uint64_t kEnd64Bytes = 56;
inline constexpr std::uint64_t kLocatorBytes = 20;

inline constexpr std::uint16_t kZip64Field = 0x0001;
/// A number that is too large for its place stands in the ZIP64 field, and this in its place.
inline constexpr std::uint32_t kIn64 = 0xffffffff;
inline constexpr std::uint16_t kIn64Short = 0xffff;

inline constexpr std::uint16_t kEncryptedFlag = 1U << 0;
/// The local header leaves checksum and sizes open; they follow the data.
inline constexpr std::uint16_t kDescriptorFlag = 1U << 3;

}  // namespace self_attention::io::zip
