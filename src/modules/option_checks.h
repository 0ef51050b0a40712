#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

namespace self_attention {

/// A constructor argument, for the message: its name and what came.
struct SizeOption {
  std::string_view name;
  int64_t value;
};

/// Throws c10::ValueError unless 1 <= heads <= embed: head size embed / heads is at least 1.
void check_sizes(std::string_view who, SizeOption embed, SizeOption heads);

/// check_sizes, and heads must divide embed.
void check_divisible_sizes(std::string_view who, SizeOption embed, SizeOption heads);

/// Ends a module's text with the options that differ from their defaults, and a parenthesis.
void print_options(std::ostream& stream, bool is_causal, double dropout);

}  // namespace self_attention
