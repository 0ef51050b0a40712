if(PROJECT_IS_TOP_LEVEL)
  self_attention_find_torch(IGNORE_TOOLKIT)
else()
  self_attention_find_torch(USE_TOOLKIT)
endif()

if(SELF_ATTENTION_BUILD_TOOLS OR SELF_ATTENTION_BUILD_TESTS)
  find_package(CLI11 REQUIRED)
  # Header-only: torch ships a newer fmt of its own beside its headers, and a linked libfmt of another
  # version would not match it.
  find_package(fmt REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(ZLIB REQUIRED)
endif()
if(SELF_ATTENTION_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
