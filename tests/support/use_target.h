#pragma once

#include <self_attention/ops/cpu_target.h>

#include <string>

namespace self_attention::testing {

/// While it lives the kernel runs with that instruction set.
class UseTarget {
 public:
  explicit UseTarget(const std::string& name) : before_(cpu_target()) { set_cpu_target(name); }
  ~UseTarget() { set_cpu_target(before_); }
  UseTarget(const UseTarget&) = delete;
  UseTarget& operator=(const UseTarget&) = delete;

 private:
  std::string before_;
};

}  // namespace self_attention::testing
