#include "support/failing_allocations.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace self_attention::testing {
namespace {

constexpr std::int64_t kNever = INT64_MAX;
std::atomic<std::int64_t> left = kNever;  // allocations that succeed
std::atomic<bool> all_from_there = false;

bool fails() {
  if (left.load(std::memory_order_relaxed) == kNever) return false;
  const std::int64_t before = left.fetch_sub(1);
  return before == 0 || (before < 0 && all_from_there);
}

}  // namespace

AllocationFailure::AllocationFailure(std::size_t n, Failing which) {
  all_from_there = which == Failing::kAllFromThere;
  left = static_cast<std::int64_t>(n) - 1;
}

AllocationFailure::~AllocationFailure() { left = kNever; }

bool AllocationFailure::happened() const { return left < 0; }

}  // namespace self_attention::testing

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return self_attention::testing::fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new(std::size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// The names that the linker's --wrap=aligned_alloc makes.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  if (self_attention::testing::fails()) return nullptr;
  void* memory = __real_aligned_alloc(alignment, bytes);
  // NaN, and indices that lead nowhere, for whoever reads what was never written.
  if (memory != nullptr) std::memset(memory, 0xFF, bytes);
  return memory;
}
}
// NOLINTEND(bugprone-reserved-identifier)
