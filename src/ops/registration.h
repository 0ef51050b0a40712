#pragma once

#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>

namespace self_attention {

/// A part of the op library, filled while this shared library is loaded.
///
/// A second copy of it in one process, loaded by another path, warns and leaves the ops to the
/// first: LibTorch's macros would throw where nothing can catch, and end the process.
class Registration {
 public:
  using Fill = void(torch::Library& library);

  /// `key` is that of implementations; without one the part defines ops. `file` and `line` are
  /// where the dispatcher says that an op was registered.
  Registration(std::optional<c10::DispatchKey> key, const char* file, uint32_t line, Fill& fill);

 private:
  std::string place_;  // which the library only points to
  torch::Library library_;
};

}  // namespace self_attention

/// TORCH_LIBRARY_FRAGMENT(self_attention, library) and TORCH_LIBRARY_IMPL(self_attention, key,
/// library) as a Registration: the body follows.
#define SELF_ATTENTION_OPS(library) SELF_ATTENTION_REGISTRATION(std::nullopt, library, C10_UID)
#define SELF_ATTENTION_KERNELS(key, library) \
  SELF_ATTENTION_REGISTRATION(c10::DispatchKey::key, library, C10_UID)
#define SELF_ATTENTION_REGISTRATION(key, library, uid)                             \
  static void C10_CONCATENATE(fill_, uid)(torch::Library&);                        \
  static const ::self_attention::Registration C10_CONCATENATE(registration_, uid)( \
      key, __FILE__, __LINE__, C10_CONCATENATE(fill_, uid));                       \
  void C10_CONCATENATE(fill_, uid)(torch::Library & library)  // NOLINT(bugprone-macro-parentheses)
