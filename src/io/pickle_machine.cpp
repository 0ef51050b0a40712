#include "io/pickle_machine.h"

#include <limits>
#include <utility>

#include "io/formatted.h"

namespace self_attention::io {
namespace {

/// A place on the stack becomes an item of a container, and vectors grow to twice their need.
constexpr std::uint64_t kPlaceBytes = 4 * sizeof(PickleId);

}  // namespace

Pickle PickleMachine::finish() {
  pickle_.root_ = pop();
  pickle_.bytes_ = cursor_.position();
  return std::move(pickle_);
}

void PickleMachine::add_integer(PickleKind kind, std::int64_t value) {
  Pickle::Slot slot;
  slot.kind = kind;
  slot.integer = value;
  push(store(slot));
}

void PickleMachine::add_text(PickleKind kind, std::string_view text) {
  push(store_text(kind, text));
}

PickleId PickleMachine::store_text(PickleKind kind, std::string_view text) {
  if (text.size() > std::numeric_limits<std::uint32_t>::max()) {
    cursor_.fail(formatted("a text of {} bytes is too long", text.size()));
  }
  Pickle::Slot slot;
  slot.kind = kind;
  slot.length = static_cast<std::uint32_t>(text.size());
  slot.text = text.data();
  return store(slot);
}

void PickleMachine::add(PickleKind kind, Pickle::Compound compound) {
  charge(sizeof(Pickle::Compound));
  Pickle::Slot slot;
  slot.kind = kind;
  slot.compound = pickle_.compounds_.size();
  pickle_.compounds_.push_back(std::move(compound));
  push(store(slot));
}

PickleId PickleMachine::store(Pickle::Slot slot) {
  charge(sizeof(Pickle::Slot));
  if (pickle_.slots_.size() >= kNoPickleId) cursor_.fail("more than 2^32 values");
  pickle_.slots_.push_back(slot);
  return static_cast<PickleId>(pickle_.slots_.size() - 1);
}

void PickleMachine::require(std::size_t count) const {
  const std::size_t available = stack_.size() - (marks_.empty() ? 0 : marks_.back());
  if (available < count) {
    cursor_.fail(formatted("expected {} values on the stack, found {}", count, available));
  }
}

PickleId PickleMachine::top() const {
  require(1);
  return stack_.back();
}

void PickleMachine::push(PickleId id) {
  charge(kPlaceBytes);
  stack_.push_back(id);
}

PickleId PickleMachine::pop() {
  const PickleId id = top();
  stack_.pop_back();
  return id;
}

PickleId PickleMachine::pop(PickleKind kind) {
  const PickleId id = pop();
  if (!pickle_.is(id, kind)) {
    cursor_.fail(formatted("expected {}, found {}", Pickle::kind_name(kind), pickle_.describe(id)));
  }
  return id;
}

PickleMachine::Ids PickleMachine::pop_many(std::size_t count) {
  require(count);
  const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  Ids items(first, stack_.end());
  stack_.erase(first, stack_.end());
  return items;
}

void PickleMachine::mark() {
  charge(kPlaceBytes);
  marks_.push_back(stack_.size());
}

PickleMachine::Ids PickleMachine::pop_to_mark() {
  if (marks_.empty()) cursor_.fail("expected a mark on the stack, found none");
  Ids items = pop_many(stack_.size() - marks_.back());
  marks_.pop_back();
  return items;
}

void PickleMachine::pop_or_unmark() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
  } else {
    pop();
  }
}

void PickleMachine::put(std::size_t place) {
  const PickleId id = top();
  if (place >= memo_.size()) {
    // Picklers number their memo without gaps, and only memoize what they have just made.
    if (place > pickle_.slots_.size()) {
      cursor_.fail(formatted("memo place {} is out of order", place));
    }
    charge((place + 1 - memo_.size()) * 2 * sizeof(PickleId));
    memo_.resize(place + 1, kNoPickleId);
  }
  memo_[place] = id;
}

void PickleMachine::get(std::size_t place) {
  if (place >= memo_.size() || memo_[place] == kNoPickleId) {
    cursor_.fail(formatted("memo place {} is empty", place));
  }
  push(memo_[place]);
}

void PickleMachine::extend(PickleKind kind, const Ids& items) {
  const Pickle::Slot& target = pickle_.slots_[top()];
  if (kind == PickleKind::kDict && items.size() % 2 != 0) cursor_.fail("a key without a value");
  // Subclasses of list and dict fill themselves this way too; they stay opaque.
  if (target.kind == PickleKind::kCall || target.kind == PickleKind::kObject) return;
  if (target.kind != kind) {
    cursor_.fail(
        formatted("items for {} given to {}", Pickle::kind_name(kind), pickle_.describe(top())));
  }
  Ids& all = pickle_.compounds_[target.compound].items;
  all.insert(all.end(), items.begin(), items.end());
}

void PickleMachine::set_state(PickleId state) {
  const Pickle::Slot& target = pickle_.slots_[top()];
  // Any other value has no use for a state.
  if (target.kind >= PickleKind::kTuple) pickle_.compounds_[target.compound].state = state;
}

void PickleMachine::charge(std::uint64_t bytes) {
  if (bytes > allowance_) {
    cursor_.fail("its values need more memory than a file of this size justifies");
  }
  allowance_ -= bytes;
}

}  // namespace self_attention::io
