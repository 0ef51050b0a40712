# Warnings for our own targets; other people's headers come in as system headers.
add_library(self_attention_warnings INTERFACE)
target_compile_options(
  self_attention_warnings
  INTERFACE -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
            # GCC 12 sees overlaps that cannot be in inlined std::string operations.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
            $<$<BOOL:${SELF_ATTENTION_WARNINGS_AS_ERRORS}>:-Werror>)
