#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/format_error.h"

namespace self_attention::io {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInteger,
  kBigInteger,  ///< beyond 64 bits, its value is not kept
  kFloat,       ///< its value is not kept
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,  ///< also OrderedDict and defaultdict
  kSet,
  kGlobal,      ///< a class or function by its name
  kCall,        ///< what a callable would have returned
  kObject,      ///< an instance of a class
  kPersistent,  ///< a reference to something outside of the pickle, such as a storage
};

/// Place of a value in its Pickle.
using PickleId = std::uint32_t;
inline constexpr PickleId kNoPickleId = std::numeric_limits<PickleId>::max();

/// One value as it is looked at; it points into its Pickle. Children are places, so a value that
/// the pickle refers to often exists once.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::int64_t integer = 0;           ///< kBool, kInteger
  std::string_view text{};            ///< kString, kBytes: into the bytes that were parsed
  std::span<const PickleId> items{};  ///< elements; kDict: key, value, key, value ...
  PickleId callee = kNoPickleId;      ///< what kCall, kObject would call; kGlobal: its module
  PickleId arguments = kNoPickleId;   ///< their tuple; kGlobal: its name; kPersistent: its id
  PickleId state = kNoPickleId;       ///< what BUILD would have given to it
};

/// The pickle ends before its STOP.
class PickleTruncated : public FormatError {
 public:
  using FormatError::FormatError;
};

/// Where a pickle comes from and what it may cost.
struct PickleSource {
  std::string name;                  ///< for messages: the file, and the entry in it
  std::span<const std::byte> bytes;  ///< must outlive the Pickle; may go on after its end
  std::uint64_t allowance;           ///< bytes of memory that its values may take
};

/// The values of one pickle, none of them acted upon.
///
/// Nothing is imported or called: what Python would construct by calling stays a kCall or kObject
/// with its parts. Values live in one flat store and refer to each other by place, so hostile
/// nesting costs no stack, and a walk must bound its own steps where values are shared: a small
/// pickle can describe a tree of any size, or a value that contains itself.
class Pickle {
 public:
  /// Reads protocols 1 to 5 up to the STOP. Throws PickleTruncated, or FormatError for anything
  /// malformed and for values beyond the allowance.
  static Pickle parse(const PickleSource& source);

  /// Places are numbered from 0.
  PickleId size() const { return static_cast<PickleId>(slots_.size()); }
  PickleId root() const { return root_; }
  /// Bytes from the start to after the STOP.
  std::size_t bytes() const { return bytes_; }
  PickleValue operator[](PickleId id) const;

  bool is(PickleId id, PickleKind kind) const { return slots_[id].kind == kind; }
  bool is_global(PickleId id, std::string_view module, std::string_view name) const;
  /// "torch._utils._rebuild_tensor_v2"; "?" for what is not a global.
  std::string global_name(PickleId id) const;
  /// "a dict", "None"
  static std::string_view kind_name(PickleKind kind);
  /// For messages: "an int", "an object of class torch.nn.modules.linear.Linear".
  std::string describe(PickleId id) const;

 private:
  friend class PickleMachine;

  /// Most values of a large pickle are numbers and texts, so these take no more than this.
  struct Slot {
    PickleKind kind = PickleKind::kNone;
    std::uint32_t length = 0;  // of the text
    union {
      std::int64_t integer = 0;
      const char* text;
      std::size_t compound;  // place in compounds_, for kinds from kTuple on
    };
  };
  struct Compound {
    std::vector<PickleId> items = {};
    PickleId callee = kNoPickleId;
    PickleId arguments = kNoPickleId;
    PickleId state = kNoPickleId;
  };

  std::deque<Slot> slots_;  // a deque copies nothing while it grows
  std::deque<Compound> compounds_;
  PickleId root_ = kNoPickleId;
  std::size_t bytes_ = 0;
};

}  // namespace self_attention::io
