#include "modules/option_checks.h"

#include <c10/util/Exception.h>

namespace self_attention {

void check_sizes(std::string_view who, SizeOption embed, SizeOption heads) {
  for (const SizeOption& size : {embed, heads}) {
    TORCH_CHECK_VALUE(size.value > 0, "[", who, "] ", size.name,
                      ": expected a positive number, got ", size.value);
  }
  TORCH_CHECK_VALUE(heads.value <= embed.value, "[", who, "] ", heads.name, ": expected at most ",
                    embed.name, "=", embed.value, " (head size 0 cannot run), got ", heads.value);
}

void check_divisible_sizes(std::string_view who, SizeOption embed, SizeOption heads) {
  check_sizes(who, embed, heads);
  TORCH_CHECK_VALUE(embed.value % heads.value == 0, "[", who, "] ", heads.name,
                    ": expected a divisor of ", embed.name, "=", embed.value, ", got ",
                    heads.value);
}

void print_options(std::ostream& stream, bool is_causal, double dropout) {
  if (is_causal) stream << ", is_causal=true";
  if (dropout != 0) stream << ", dropout=" << dropout;
  stream << ")";
}

}  // namespace self_attention
