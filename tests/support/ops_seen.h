#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace self_attention::testing {

/// Notes the names of what LibTorch dispatches on this thread, nested calls too, while it lives,
/// one at a time.
class OpsSeen {
 public:
  OpsSeen() {
    noted().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  }
  ~OpsSeen() { at::removeCallback(handle_); }
  OpsSeen(const OpsSeen&) = delete;
  OpsSeen& operator=(const OpsSeen&) = delete;

  /// In their order.
  const std::vector<std::string>& names() const { return noted(); }

  std::size_t count(const std::string& name) const {
    return static_cast<std::size_t>(std::count(noted().begin(), noted().end(), name));
  }

 private:
  static std::vector<std::string>& noted() {
    static thread_local std::vector<std::string> names;
    return names;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    noted().emplace_back(function.name());
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace self_attention::testing
