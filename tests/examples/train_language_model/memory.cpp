#include "memory.h"

#include <limits>

#ifdef __linux__
#include <malloc.h>
#endif

namespace language_model {

void keep_freed_memory() {
#ifdef M_TRIM_THRESHOLD                        // glibc has it
  constexpr int kLargestThreshold = 32 << 20;  // that glibc takes
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace language_model
