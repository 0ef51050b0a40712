#include "tools/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace self_attention::tools {

ProgressBar::ProgressBar(std::size_t total)
    : total_(total), shown_(total > 0 && ::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::advance() {
  ++done_;
  if (!shown_) return;
  constexpr std::size_t kWidth = 40;
  const std::size_t filled = kWidth * done_ / total_;
  fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {}/{}", "", filled, "", kWidth - filled, done_, total_);
  std::fflush(stderr);
}

}  // namespace self_attention::tools
