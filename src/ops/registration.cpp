#include "ops/registration.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace self_attention {
namespace {

/// Where the shared library is that holds this function.
const std::string& library_path() {
  static const std::string path = [] {
    Dl_info info;
    const auto* const here = reinterpret_cast<const void*>(&library_path);
    if (dladdr(here, &info) == 0) return std::string("libself_attention.so");
    std::error_code error;
    const std::filesystem::path file = std::filesystem::absolute(info.dli_fname, error);
    return error ? std::string(info.dli_fname) : file.lexically_normal().string();
  }();
  return path;
}

/// Whether another copy has registered the ops. Decided once, before this copy registers any.
bool is_second_copy() {
  static const bool second = [] {
    const auto other = c10::Dispatcher::singleton().findSchema({"self_attention::attention", ""});
    if (!other) return false;
    TORCH_WARN("[self_attention] ", library_path(),
               ": expected one copy of this library in a process, got a second one; the ops stay "
               "those that were ",
               other->debug());
    return true;
  }();
  return second;
}

std::string place(const char* file) { return library_path() + ", " + file; }

torch::Library::Kind kind(std::optional<c10::DispatchKey> key) {
  return key ? torch::Library::IMPL : torch::Library::FRAGMENT;
}

}  // namespace

Registration::Registration(std::optional<c10::DispatchKey> key, const char* file, uint32_t line,
                           Fill& fill)
    : place_(place(file)), library_(kind(key), "self_attention", key, place_.c_str(), line) {
  if (!is_second_copy()) fill(library_);
}

}  // namespace self_attention
