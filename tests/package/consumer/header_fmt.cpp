#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <string>

int header_fmt_version() { return FMT_VERSION; }
std::string header_fmt(double value) { return fmt::format("{:.3f}", value); }
