#pragma once

#include <cstddef>

namespace self_attention::tools {

/// A bar on standard error that shows how much is done. Silent where that is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::size_t total);
  /// Wipes the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance();

 private:
  std::size_t total_;
  std::size_t done_ = 0;
  bool shown_;
};

}  // namespace self_attention::tools
