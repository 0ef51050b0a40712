#include "io/pickle.h"

#include "io/formatted.h"
#include "io/text.h"

namespace self_attention::io {
std::string_view Pickle::kind_name(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInteger:
    case PickleKind::kBigInteger:
      return "an int";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kString:
      return "a str";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kGlobal:
      return "a global";
    case PickleKind::kCall:
      return "the result of a call";
    case PickleKind::kObject:
      return "an object";
    case PickleKind::kPersistent:
      return "a reference to a storage";
  }
  return "?";
}

PickleValue Pickle::operator[](PickleId id) const {
  const Slot& slot = slots_[id];
  PickleValue value{.kind = slot.kind};
  if (slot.kind >= PickleKind::kTuple) {
    const Compound& compound = compounds_[slot.compound];
    value.items = compound.items;
    value.callee = compound.callee;
    value.arguments = compound.arguments;
    value.state = compound.state;
  } else if (slot.kind == PickleKind::kString || slot.kind == PickleKind::kBytes) {
    value.text = {slot.text, slot.length};
  } else {
    value.integer = slot.integer;
  }
  return value;
}

bool Pickle::is_global(PickleId id, std::string_view module, std::string_view name) const {
  const PickleValue value = (*this)[id];
  return value.kind == PickleKind::kGlobal && (*this)[value.callee].text == module &&
         (*this)[value.arguments].text == name;
}

std::string Pickle::global_name(PickleId id) const {
  const PickleValue value = (*this)[id];
  if (value.kind != PickleKind::kGlobal) return "?";
  // A message has no use for more, and a hostile name can be as long as the file.
  constexpr std::size_t kLongest = 100;
  const std::string_view module = (*this)[value.callee].text.substr(0, kLongest);
  const std::string_view name = (*this)[value.arguments].text.substr(0, kLongest);
  const std::string quoted = in_quotes(formatted("{}.{}", module, name));
  return quoted.substr(1, quoted.size() - 2);
}

std::string Pickle::describe(PickleId id) const {
  const PickleValue value = (*this)[id];
  switch (value.kind) {
    case PickleKind::kGlobal:
      return "the global " + global_name(id);
    case PickleKind::kCall:
      return "the result of calling " + global_name(value.callee);
    case PickleKind::kObject:
      return "an object of class " + global_name(value.callee);
    default:
      return std::string(kind_name(value.kind));
  }
}

}  // namespace self_attention::io
