#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/element_type.h"
#include "tools/parity/manifest.h"

namespace self_attention::parity {

/// A tensor in the memory layout it had in Python: element (i, j, ...) lies at
/// i * strides[0] + j * strides[1] + ... of `storage`. Places that no element uses hold NaN (true
/// in a bool tensor, -1 in an integer one), so that code which strays into them shows.
struct StridedTensor {
  io::ElementType type;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::vector<std::byte> storage;
};

/// A case with its tensors, verified against the manifest.
struct ReferenceCase {
  const CaseRecord* record;
  std::map<std::string, StridedTensor> tensors;

  /// The tensor of that role, or nullptr.
  const StridedTensor* find(const std::string& role) const;
  /// The tensors whose role starts with `prefix`, by the rest of the role.
  std::map<std::string, const StridedTensor*> starting_with(std::string_view prefix) const;
};

/// Reads the cases of one reference directory.
class ReferenceReader {
 public:
  /// `manifest` must outlive the reader and the cases it returns.
  explicit ReferenceReader(const Manifest& manifest);
  ~ReferenceReader();
  ReferenceReader(ReferenceReader&&) noexcept;

  /// Throws io::FormatError, naming file, case and tensor, for a file that is missing or not sound
  /// and for a tensor that is missing or whose dtype, shape or checksum is not the manifest's.
  ReferenceCase load(const CaseRecord& record);

 private:
  struct DataFile;
  const DataFile& open(const CaseRecord& record);
  static StridedTensor load_tensor(const DataFile& data, const CaseRecord& record,
                                   const std::string& role);

  const Manifest* manifest_;
  std::map<std::string, std::unique_ptr<DataFile>> files_;
};

}  // namespace self_attention::parity
