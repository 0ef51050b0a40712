#include <self_attention/ops/cpu_target.h>

static_assert(__cplusplus >= 202002L);

int main() { return self_attention::cpu_target().empty() ? 1 : 0; }
