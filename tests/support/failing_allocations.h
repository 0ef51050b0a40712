#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <exception>
#include <new>
#include <string>

namespace self_attention::testing {

/// Which of the allocations of a program fail. It must be built with failing_allocations.cpp.
enum class Failing { kOne, kAllFromThere };

/// While it lives, the n-th call of operator new or aligned_alloc, whichever thread makes it, gets
/// no memory; or none from that one on.
class AllocationFailure {
 public:
  explicit AllocationFailure(std::size_t n, Failing which = Failing::kOne);
  ~AllocationFailure();
  AllocationFailure(const AllocationFailure&) = delete;
  AllocationFailure& operator=(const AllocationFailure&) = delete;

  /// Whether there was one.
  bool happened() const;
};

/// Runs `action` with its first allocation failing, then its second, until all succeed. Each time
/// it throws std::bad_alloc, or does without. `check(what)` runs after each, with memory again, and
/// `what` says where it stands. Returns how many allocations there are.
template <typename Action, typename Check>
std::size_t fail_each_allocation(Failing which, Action action, Check check) {
  for (std::size_t n = 1;; ++n) {
    bool happened = false;
    std::string error;
    try {
      const AllocationFailure failure(n, which);
      struct Note {
        const AllocationFailure& failure;
        bool& happened;
        ~Note() { happened = failure.happened(); }
      } const note{failure, happened};
      action();
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& other) {
      error = other.what();
    }
    EXPECT_EQ(error, "") << "allocation " << n;
    check("after a failure of allocation " + std::to_string(n));
    if (!happened || ::testing::Test::HasFailure()) return n - 1;
  }
}

}  // namespace self_attention::testing
