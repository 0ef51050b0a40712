#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>
#include <utility>

#include "io/formatted.h"
#include "io/pickle.h"
#include "io/pickle_cursor.h"
#include "io/pickle_machine.h"
#include "io/pickle_opcodes.h"
#include "io/text.h"

namespace self_attention::io {
namespace {

/// Reads opcodes and has the machine do what they mean.
class Unpickler {
 public:
  explicit Unpickler(const PickleSource& source)
      : bytes_(source), machine_(bytes_, source.allowance) {}

  Pickle run() {
    while (true) {
      const auto opcode = static_cast<Opcode>(bytes_.opcode());
      if (opcode == Opcode::kStop) break;
      const bool known = scalar(opcode) || text(opcode) || container(opcode) || memo(opcode) ||
                         construction(opcode) || control(opcode);
      if (!known) {
        bytes_.fail(formatted("opcode 0x{:02x} is unknown or not supported",
                              static_cast<unsigned>(opcode)));
      }
    }
    return machine_.finish();
  }

 private:
  using Ids = PickleMachine::Ids;

  // Each of the next six handles one family of opcodes and returns false for any other.

  bool scalar(Opcode opcode) {
    switch (opcode) {
      case Opcode::kNone:
        machine_.add_integer(PickleKind::kNone, 0);
        break;
      case Opcode::kNewTrue:
      case Opcode::kNewFalse:
        machine_.add_integer(PickleKind::kBool, opcode == Opcode::kNewTrue);
        break;
      case Opcode::kBinInt1:
        machine_.add_integer(PickleKind::kInteger, bytes_.number<std::uint8_t>());
        break;
      case Opcode::kBinInt2:
        machine_.add_integer(PickleKind::kInteger, bytes_.number<std::uint16_t>());
        break;
      case Opcode::kBinInt:
        machine_.add_integer(PickleKind::kInteger, bytes_.number<std::int32_t>());
        break;
      case Opcode::kInt:
      case Opcode::kLong:
        add_decimal(bytes_.line());
        break;
      case Opcode::kLong1:
        add_long(bytes_.take(bytes_.number<std::uint8_t>()));
        break;
      case Opcode::kLong4:
        add_long(bytes_.take(bytes_.number<std::uint32_t>()));
        break;
      case Opcode::kBinFloat:
        bytes_.take(sizeof(double));
        machine_.add_integer(PickleKind::kFloat, 0);
        break;
      default:
        return false;
    }
    return true;
  }

  bool text(Opcode opcode) {
    switch (opcode) {
      case Opcode::kShortBinUnicode:
      case Opcode::kShortBinString:
        machine_.add_text(PickleKind::kString, bytes_.take(bytes_.number<std::uint8_t>()));
        break;
      case Opcode::kBinUnicode:
      case Opcode::kBinString:
        machine_.add_text(PickleKind::kString, bytes_.take(bytes_.number<std::uint32_t>()));
        break;
      case Opcode::kBinUnicode8:
        machine_.add_text(PickleKind::kString, bytes_.take(bytes_.number<std::uint64_t>()));
        break;
      case Opcode::kShortBinBytes:
        machine_.add_text(PickleKind::kBytes, bytes_.take(bytes_.number<std::uint8_t>()));
        break;
      case Opcode::kBinBytes:
        machine_.add_text(PickleKind::kBytes, bytes_.take(bytes_.number<std::uint32_t>()));
        break;
      case Opcode::kBinBytes8:
      case Opcode::kByteArray8:
        machine_.add_text(PickleKind::kBytes, bytes_.take(bytes_.number<std::uint64_t>()));
        break;
      default:
        return false;
    }
    return true;
  }

  bool container(Opcode opcode) {
    switch (opcode) {
      case Opcode::kEmptyTuple:
        machine_.add(PickleKind::kTuple);
        break;
      case Opcode::kEmptyList:
        machine_.add(PickleKind::kList);
        break;
      case Opcode::kEmptyDict:
        machine_.add(PickleKind::kDict);
        break;
      case Opcode::kEmptySet:
        machine_.add(PickleKind::kSet);
        break;
      case Opcode::kTuple1:
      case Opcode::kTuple2:
      case Opcode::kTuple3:
        machine_.add(PickleKind::kTuple, {.items = machine_.pop_many(tuple_size(opcode))});
        break;
      case Opcode::kTuple:
        machine_.add(PickleKind::kTuple, {.items = machine_.pop_to_mark()});
        break;
      case Opcode::kList:
        machine_.add(PickleKind::kList, {.items = machine_.pop_to_mark()});
        break;
      case Opcode::kFrozenSet:
        machine_.add(PickleKind::kSet, {.items = machine_.pop_to_mark()});
        break;
      case Opcode::kDict: {
        const Ids items = machine_.pop_to_mark();
        machine_.add(PickleKind::kDict);
        machine_.extend(PickleKind::kDict, items);
        break;
      }
      case Opcode::kAppend:
        machine_.extend(PickleKind::kList, machine_.pop_many(1));
        break;
      case Opcode::kAppends:
        machine_.extend(PickleKind::kList, machine_.pop_to_mark());
        break;
      case Opcode::kAddItems:
        machine_.extend(PickleKind::kSet, machine_.pop_to_mark());
        break;
      case Opcode::kSetItem:
        machine_.extend(PickleKind::kDict, machine_.pop_many(2));
        break;
      case Opcode::kSetItems:
        machine_.extend(PickleKind::kDict, machine_.pop_to_mark());
        break;
      default:
        return false;
    }
    return true;
  }

  bool memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::kMemoize:
        machine_.put_next();
        break;
      case Opcode::kBinPut:
        machine_.put(bytes_.number<std::uint8_t>());
        break;
      case Opcode::kLongBinPut:
        machine_.put(bytes_.number<std::uint32_t>());
        break;
      case Opcode::kBinGet:
        machine_.get(bytes_.number<std::uint8_t>());
        break;
      case Opcode::kLongBinGet:
        machine_.get(bytes_.number<std::uint32_t>());
        break;
      default:
        return false;
    }
    return true;
  }

  bool construction(Opcode opcode) {
    switch (opcode) {
      case Opcode::kGlobal: {
        const PickleId module = machine_.store_text(PickleKind::kString, bytes_.line());
        const PickleId name = machine_.store_text(PickleKind::kString, bytes_.line());
        machine_.add(PickleKind::kGlobal, {.callee = module, .arguments = name});
        break;
      }
      case Opcode::kStackGlobal: {
        const PickleId name = machine_.pop(PickleKind::kString);
        const PickleId module = machine_.pop(PickleKind::kString);
        machine_.add(PickleKind::kGlobal, {.callee = module, .arguments = name});
        break;
      }
      case Opcode::kReduce: {
        const PickleId arguments = machine_.pop(PickleKind::kTuple);
        reduce(machine_.pop(), arguments);
        break;
      }
      case Opcode::kNewObjEx:
        machine_.pop(PickleKind::kDict);  // keyword arguments: nothing here has a use for them
        [[fallthrough]];
      case Opcode::kNewObj: {
        const PickleId arguments = machine_.pop(PickleKind::kTuple);
        machine_.add(PickleKind::kObject, {.callee = machine_.pop(), .arguments = arguments});
        break;
      }
      case Opcode::kBuild:
        machine_.set_state(machine_.pop());
        break;
      case Opcode::kBinPersistentId:
        machine_.add(PickleKind::kPersistent, {.arguments = machine_.pop()});
        break;
      default:
        return false;
    }
    return true;
  }

  bool control(Opcode opcode) {
    switch (opcode) {
      case Opcode::kProto: {
        constexpr int kNewest = 5;
        const int protocol = bytes_.number<std::uint8_t>();
        if (protocol > kNewest) {
          bytes_.fail(formatted("expected protocol {} at most, found {}", kNewest, protocol));
        }
        break;
      }
      case Opcode::kFrame:
        bytes_.number<std::uint64_t>();  // a hint for readers that fetch in pieces
        break;
      case Opcode::kMark:
        machine_.mark();
        break;
      case Opcode::kPop:
        machine_.pop_or_unmark();
        break;
      case Opcode::kPopMark:
        machine_.pop_to_mark();
        break;
      case Opcode::kDup:
        machine_.push(machine_.top());
        break;
      default:
        return false;
    }
    return true;
  }

  // The meaning of single opcodes.

  /// State dicts are made by a call, so the calls that make a dict are the ones that are known.
  void reduce(PickleId callee, PickleId arguments) {
    const Pickle& values = machine_.values();
    const std::span<const PickleId> given = values[arguments].items;
    Ids items;
    const bool is_dict = values.is_global(callee, "collections", "defaultdict") ||
                         (values.is_global(callee, "collections", "OrderedDict") &&
                          (given.empty() || append_pairs(items, given.front())));
    if (is_dict) {
      machine_.add(PickleKind::kDict, {.items = std::move(items)});
    } else {
      machine_.add(PickleKind::kCall, {.callee = callee, .arguments = arguments});
    }
  }

  /// Python 2 wrote OrderedDict([[key, value], ...]). False if `pairs` is something else.
  bool append_pairs(Ids& items, PickleId pairs) {
    const Pickle& values = machine_.values();
    for (const PickleId id : values[pairs].items) {
      const std::span<const PickleId> pair = values[id].items;
      if (pair.size() != 2) return false;
      // The list may be shared, so copies of it can exceed the file.
      machine_.charge(2 * pair.size_bytes());
      items.insert(items.end(), pair.begin(), pair.end());
    }
    return values.is(pairs, PickleKind::kList);
  }

  static std::size_t tuple_size(Opcode opcode) {
    return static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::kTuple1) + 1;
  }

  /// Two's complement, least significant byte first, of any length.
  void add_long(std::string_view bytes) {
    if (bytes.size() > sizeof(std::int64_t)) {
      machine_.add_integer(PickleKind::kBigInteger, 0);
      return;
    }
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&value));
    machine_.add_integer(PickleKind::kInteger, value);
  }

  /// The text of protocol 1, which writes True as 01 and ends a long with L.
  void add_decimal(std::string_view text) {
    if (text == "00" || text == "01") {
      machine_.add_integer(PickleKind::kBool, text == "01");
      return;
    }
    const std::string_view digits = text.substr(0, text.size() - (text.ends_with('L') ? 1 : 0));
    const char* last = digits.data() + digits.size();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), last, value);
    if (error == std::errc::invalid_argument || end != last) {
      bytes_.fail(formatted("expected an integer, found {}", in_quotes(text)));
    }
    const bool fits = error == std::errc();
    machine_.add_integer(fits ? PickleKind::kInteger : PickleKind::kBigInteger, value);
  }

  PickleCursor bytes_;
  PickleMachine machine_;
};

}  // namespace

Pickle Pickle::parse(const PickleSource& source) { return Unpickler(source).run(); }

}  // namespace self_attention::io
