#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "io/pickle.h"
#include "io/pickle_cursor.h"

namespace self_attention::io {

/// What the opcodes of a pickle work on: the values made so far, a stack of them with marks, and a
/// memo. Whatever an opcode makes it grow by is charged against the allowance.
class PickleMachine {
 public:
  using Ids = std::vector<PickleId>;

  /// `cursor` words the errors and must outlive the machine.
  PickleMachine(const PickleCursor& cursor, std::uint64_t allowance)
      : cursor_(cursor), allowance_(allowance) {}

  const Pickle& values() const { return pickle_; }
  /// Takes the values out, with the top of the stack as their root.
  Pickle finish();

  // New values, on top of the stack.
  void add_integer(PickleKind kind, std::int64_t value);
  void add_text(PickleKind kind, std::string_view text);
  void add(PickleKind kind, Pickle::Compound compound = {});

  /// A text that is not put on the stack.
  PickleId store_text(PickleKind kind, std::string_view text);

  /// What is below the last mark is out of reach for all of these.
  PickleId top() const;
  void push(PickleId id);
  PickleId pop();
  PickleId pop(PickleKind kind);
  Ids pop_many(std::size_t count);

  void mark();
  Ids pop_to_mark();
  /// The top, or the mark if nothing is above it.
  void pop_or_unmark();

  // The top into the memo, and back.
  void put(std::size_t place);
  void put_next() { put(memo_.size()); }
  void get(std::size_t place);

  /// Adds items to the container at the top.
  void extend(PickleKind kind, const Ids& items);
  void set_state(PickleId state);

  void charge(std::uint64_t bytes);

 private:
  PickleId store(Pickle::Slot slot);
  void require(std::size_t count) const;

  const PickleCursor& cursor_;
  std::uint64_t allowance_;
  Pickle pickle_;
  Ids stack_;
  std::vector<std::size_t> marks_;
  Ids memo_;
};

}  // namespace self_attention::io
