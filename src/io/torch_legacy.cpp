#include "io/torch_legacy.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "io/allowance.h"
#include "io/checked.h"
#include "io/format_error.h"
#include "io/formatted.h"
#include "io/little_endian.h"
#include "io/pickle.h"
#include "io/pickled_tensors.h"
#include "io/text.h"
#include "io/torch_tensor.h"

namespace self_attention::io {
namespace {

using Ids = std::span<const PickleId>;

/// A pickle and the bytes that its texts point to.
struct OwnedPickle {
  std::vector<std::byte> bytes;
  Pickle pickle;
};

class LegacyReader {
 public:
  explicit LegacyReader(const InputFile& file) : file_(file), position_(kTorchLegacyMagic.size()) {}

  TensorIndex read(const std::string& key) {
    read_pickle("protocol version");
    refuse_big_endian(read_pickle("system"));
    const OwnedPickle object = read_pickle("object");
    const OwnedPickle keys = read_pickle("storage keys");
    locate_storages(object.pickle, keys.pickle);
    const PickledFile source{
        file_, object.pickle, [&](std::string_view storage) -> std::optional<TensorStorage> {
          const auto found = storages_.find(storage);
          return found == storages_.end() ? std::nullopt : std::optional(found->second);
        }};
    TensorIndex index;
    index.format = FileFormat::kTorchLegacy;
    add_state_dict(source, key, index);
    return index;
  }

 private:
  /// The pickle's length is not written anywhere, so longer and longer parts are tried.
  OwnedPickle read_pickle(const std::string& what) {
    constexpr std::uint64_t kFirst = 1U << 16;
    constexpr std::uint64_t kGrowth = 8;
    const std::uint64_t available = file_.size() - position_;
    for (std::uint64_t length = kFirst;; length *= kGrowth) {
      OwnedPickle result;
      result.bytes.resize(std::min(length, available));
      file_.read(position_, result.bytes);
      try {
        result.pickle = Pickle::parse(
            {formatted("{}: {}", file_.path(), what), result.bytes, memory_allowance(file_)});
      } catch (const PickleTruncated&) {
        if (length < available) continue;
        throw;
      }
      position_ += result.pickle.bytes();
      return result;
    }
  }

  void refuse_big_endian(const OwnedPickle& system) const {
    const Pickle& pickle = system.pickle;
    const Ids items = pickle[pickle.root()].items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (pickle[items[i]].text == "little_endian" && pickle[items[i + 1]].integer == 1) return;
    }
    throw FormatError(
        formatted("{}: expected byte order little, found another: save it again on "
                  "a little-endian machine",
                  file_.path()));
  }

  void locate_storages(const Pickle& object, const Pickle& keys) {
    const std::map<std::string_view, std::uint64_t> sizes = element_sizes(object);
    for (const PickleId id : keys[keys.root()].items) {
      const std::string_view key = keys[id].text;
      const auto size = sizes.find(key);
      if (size == sizes.end()) fail(formatted("no tensor uses storage {}", in_quotes(key)));
      std::array<std::byte, sizeof(std::uint64_t)> count{};
      file_.read(position_, count);
      position_ += count.size();
      const auto bytes = checked_multiply(little_endian<std::uint64_t>(count.data()), size->second);
      if (!bytes || *bytes > file_.size() - position_) {
        fail(
            formatted("storage {}: expected {} bytes from byte {}, the file has only {}: it is "
                      "truncated or altered",
                      in_quotes(key), bytes ? std::to_string(*bytes) : "more than 2^64", position_,
                      file_.size() - position_));
      }
      TensorStorage storage{"storage " + in_quotes(key), position_, *bytes, std::nullopt};
      // The key of the map must outlive the pickle of keys, so it is the object's.
      if (!storages_.emplace(size->first, std::move(storage)).second) {
        fail(formatted("storage {} occurs twice", in_quotes(key)));
      }
      position_ += *bytes;
    }
    if (position_ != file_.size()) {
      fail(formatted("expected the end after the storages at byte {}, the file has {}", position_,
                     file_.size()));
    }
  }

  /// Bytes of an element of each storage, by key.
  std::map<std::string_view, std::uint64_t> element_sizes(const Pickle& object) const {
    std::map<std::string_view, std::uint64_t> sizes;
    for (PickleId id = 0; id < object.size(); ++id) {
      if (!object.is(id, PickleKind::kPersistent)) continue;
      try {
        const PickledStorage storage = read_storage_reference(object, id);
        sizes.emplace(storage.key, element_size(storage.type));
      } catch (const std::runtime_error& error) {
        // Without its size, what follows it cannot be found.
        fail(formatted("found {}: load it in Python and torch.save it again", error.what()));
      }
    }
    return sizes;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(formatted("{}: legacy checkpoint: {}", file_.path(), what));
  }

  const InputFile& file_;
  std::uint64_t position_;
  std::map<std::string_view, TensorStorage> storages_;
};

}  // namespace

TensorIndex read_torch_legacy(const InputFile& file, const std::string& key) {
  return LegacyReader(file).read(key);
}

}  // namespace self_attention::io
