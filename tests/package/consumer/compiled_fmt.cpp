#include <fmt/format.h>

#include <string>

int compiled_fmt_version() { return FMT_VERSION; }
std::string compiled_fmt(double value) { return fmt::format("{:.3f}", value); }
