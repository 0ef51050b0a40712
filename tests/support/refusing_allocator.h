#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace self_attention::testing {

/// While it lives, the n-th tensor that LibTorch allocates on the CPU gets no memory, whichever
/// thread asks.
class RefusingAllocator final : public c10::Allocator {
 public:
  explicit RefusingAllocator(std::size_t n) : left_(static_cast<std::int64_t>(n) - 1) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~RefusingAllocator() override { c10::SetAllocator(c10::kCPU, others_, kPriority); }
  RefusingAllocator(const RefusingAllocator&) = delete;
  RefusingAllocator& operator=(const RefusingAllocator&) = delete;

  /// Whether that many were asked for.
  bool happened() const { return left_ < 0; }

  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(left_.fetch_sub(1) != 0, "no memory for ", bytes, " bytes");
    return others_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return others_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    others_->copy_data(to, from, bytes);
  }

 private:
  static constexpr std::uint8_t kPriority = 200;

  c10::Allocator* others_ = c10::GetAllocator(c10::kCPU);
  std::atomic<std::int64_t> left_;
};

/// Runs `action` with its first tensor refused, then its second, until it gets all, and `check`
/// after each. A refusal must come out of `action` as a c10::Error. Returns how many tensors it
/// allocates.
template <typename Action, typename Check>
std::size_t refuse_each_tensor(Action action, Check check) {
  for (std::size_t n = 1;; ++n) {
    bool happened = false;
    bool thrown = false;
    {
      const RefusingAllocator refusing(n);
      try {
        action();
      } catch (const c10::Error&) {
        thrown = true;
      }
      happened = refusing.happened();
    }
    check(n, happened, thrown);
    if (!happened) return n - 1;
  }
}

}  // namespace self_attention::testing
