#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace self_attention::testing {

/// The names of what LibTorch dispatches on this thread, nested calls too, while `call` runs.
inline std::vector<std::string> dispatched_ops(const std::function<void()>& call) {
  static thread_local std::vector<std::string> names;
  names.clear();
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                   names.emplace_back(function.name());
                                   return std::unique_ptr<at::ObserverContext>();
                                 }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return names;
}

}  // namespace self_attention::testing
