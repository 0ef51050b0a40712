// Catches what the library throws, formats with other versions of fmt than the library's, and
// writes an archive that needs the library: errors ARCHIVE

#include <c10/util/Exception.h>
#include <self_attention/io/torchscript.h>
#include <self_attention/modules/shared_projection_attention.h>

#include <exception>
#include <iostream>
#include <string>

int compiled_fmt_version();
std::string compiled_fmt(double value);
int header_fmt_version();
std::string header_fmt(double value);

namespace {

int failures = 0;

void check(bool holds, const std::string& what) {
  if (!holds) std::cerr << "failed: " << what << "\n";
  failures += holds ? 0 : 1;
}

/// Whether `call` throws what a handler for `Error` catches, with our message.
template <class Error, class Call>
bool catches(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error.what()).find("[SharedProjectionAttention] ") != std::string::npos;
  } catch (...) {
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  self_attention::SharedProjectionAttention attention(8, 2);
  const torch::Tensor x = torch::ones({1, 3, 8});
  const auto bad_value = [&] { attention->forward(x, x, torch::ones({1, 3, 9})); };
  const auto bad_type = [&] { attention->forward(x, x, x.to(torch::kLong)); };
  check(catches<c10::ValueError>(bad_value), "c10::ValueError");
  check(catches<c10::TypeError>(bad_type), "c10::TypeError");
  check(!catches<c10::TypeError>(bad_value), "another type");
  check(catches<c10::Error>(bad_value) && catches<c10::Error>(bad_type), "c10::Error");
  check(catches<std::exception>(bad_value) && catches<std::exception>(bad_type), "std::exception");

  std::cout << "fmt " << compiled_fmt_version() << " compiled, " << header_fmt_version()
            << " as headers\n";
  check(compiled_fmt_version() != header_fmt_version(), "two versions of fmt");
  check(compiled_fmt(0.5) == "0.500" && header_fmt(0.5) == "0.500", "formatted text");

  self_attention::export_torchscript(
      *attention, argv[1], self_attention::ExportOptions().ops(self_attention::ScriptOps::kFused));
  return failures;
}
