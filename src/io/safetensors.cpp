#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "io/checked.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/little_endian.h"
#include "io/safetensors_json.h"
#include "io/safetensors_types.h"
#include "io/text.h"

namespace self_attention::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
/// A tensor's bytes, counted from the start of the data.
struct Range {
  std::uint64_t begin;
  std::uint64_t end;
  std::size_t tensor;  // index into SafetensorsJson::tensors
};

class HeaderReader {
 public:
  HeaderReader(const InputFile& file, UnsupportedTypes policy) : file_(file), policy_(policy) {}

  SafetensorsHeader read() {
    SafetensorsJson json = parse_safetensors_json(file_.path(), read_text());
    refuse_duplicates(json);
    SafetensorsHeader header;
    for (const Range& range : tile(json)) {
      SafetensorsJsonTensor& tensor = json.tensors[range.tensor];
      const auto type = safetensors_type(*tensor.dtype);
      if (type) {
        header.entries.push_back(entry(std::move(tensor), *type, range));
      } else if (policy_ == UnsupportedTypes::kList) {
        header.unsupported.push_back({std::move(tensor.name), std::move(*tensor.dtype)});
      } else {
        fail(formatted("tensor {}: dtype {} is not supported", in_quotes(tensor.name),
                       in_quotes(*tensor.dtype)));
      }
    }
    header.metadata = std::move(json.metadata);
    header.by_name.resize(header.entries.size());
    std::iota(header.by_name.begin(), header.by_name.end(), std::size_t{0});
    std::ranges::sort(
        header.by_name, {}, [&](std::size_t i) -> auto& { return header.entries[i].name; });
    return header;
  }

 private:
  std::vector<std::byte> read_text() {
    if (file_.size() < kLengthBytes) {
      fail(formatted("expected at least {} bytes, the file has {}", kLengthBytes, file_.size()));
    }
    std::array<std::byte, kLengthBytes> prefix{};
    file_.read(0, prefix);
    const auto length = little_endian<std::uint64_t>(prefix.data());
    if (length > kLongestSafetensorsHeader) {
      fail(formatted("expected at most {} bytes of JSON, the file announces {}",
                     kLongestSafetensorsHeader, length));
    }
    if (length > file_.size() - kLengthBytes) {
      fail(formatted("expected {} bytes of JSON, the file has only {}: it is truncated", length,
                     file_.size() - kLengthBytes));
    }
    std::vector<std::byte> text(length);
    file_.read(kLengthBytes, text);
    // The format demands it, and it also refuses the byte order mark that the parser would skip.
    if (text.empty() || text.front() != std::byte{'{'}) fail("expected JSON that starts with '{'");
    data_start_ = kLengthBytes + length;
    return text;
  }

  void refuse_duplicates(const SafetensorsJson& json) const {
    std::vector<std::string_view> names;
    names.reserve(json.tensors.size());
    for (const SafetensorsJsonTensor& tensor : json.tensors) names.push_back(tensor.name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) fail(formatted("tensor {} occurs twice", in_quotes(*twice)));
  }

  /// The ranges in the order of the data, proved to cover it without overlap or hole.
  std::vector<Range> tile(const SafetensorsJson& json) const {
    std::vector<Range> ranges;
    ranges.reserve(json.tensors.size());
    for (std::size_t i = 0; i < json.tensors.size(); ++i) {
      ranges.push_back(range(json.tensors[i], i));
    }
    std::ranges::sort(ranges, {}, [](const Range& r) { return std::pair(r.begin, r.end); });
    std::uint64_t position = 0;
    for (const Range& range : ranges) {
      if (range.begin != position) {
        fail(formatted("tensor {}: expected data from byte {}, found it from {}: the data {}",
                       in_quotes(json.tensors[range.tensor].name), position, range.begin,
                       range.begin < position ? "overlap" : "have a hole"));
      }
      position = range.end;
    }
    const std::uint64_t available = file_.size() - data_start_;
    if (position != available) {
      fail(formatted("expected {} bytes of data, the file has {}: it is {}", position, available,
                     position > available ? "truncated" : "longer than its tensors"));
    }
    return ranges;
  }

  Range range(const SafetensorsJsonTensor& tensor, std::size_t index) const {
    if (!tensor.dtype || !tensor.shape || !tensor.data_offsets) {
      fail(formatted("tensor {}: {} is missing", in_quotes(tensor.name),
                     !tensor.dtype   ? "dtype"
                     : !tensor.shape ? "shape"
                                     : "data_offsets"));
    }
    const std::vector<std::int64_t>& offsets = *tensor.data_offsets;
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      fail(formatted("tensor {}: data_offsets: expected [begin, end], found {}",
                     in_quotes(tensor.name), shape_text(offsets)));
    }
    return {static_cast<std::uint64_t>(offsets[0]), static_cast<std::uint64_t>(offsets[1]), index};
  }

  SafetensorsEntry entry(SafetensorsJsonTensor tensor, ElementType type, const Range& range) const {
    const auto bytes = tensor_bytes(*tensor.shape, element_size(type));
    if (bytes != range.end - range.begin) {
      fail(formatted("tensor {}: expected {} bytes for {} {}, found {}", in_quotes(tensor.name),
                     bytes ? std::to_string(*bytes) : "more than 2^63", element_name(type),
                     shape_text(*tensor.shape), range.end - range.begin));
    }
    return {std::move(tensor.name), type, std::move(*tensor.shape), data_start_ + range.begin,
            *bytes};
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(formatted("{}: safetensors header: {}", file_.path(), what));
  }

  const InputFile& file_;
  UnsupportedTypes policy_;
  std::uint64_t data_start_ = 0;
};

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(const std::string& name) const {
  const auto name_of = [this](std::size_t i) -> const std::string& { return entries[i].name; };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_of);
  return found != by_name.end() && name_of(*found) == name ? &entries[*found] : nullptr;
}

SafetensorsHeader read_safetensors_header(const InputFile& file, UnsupportedTypes policy) {
  return HeaderReader(file, policy).read();
}

}  // namespace self_attention::io
