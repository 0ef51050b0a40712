if(PROJECT_IS_TOP_LEVEL)
  self_attention_find_torch(IGNORE_TOOLKIT)
else()
  self_attention_find_torch(USE_TOOLKIT)
  # What links the library from another folder than this one needs its targets too.
  get_directory_property(_found IMPORTED_TARGETS)
  foreach(_target IN LISTS _found)
    set_property(TARGET ${_target} PROPERTY IMPORTED_GLOBAL TRUE)
  endforeach()
endif()

# All private: no public header and no exported link line names them. fmt is header-only since torch
# ships a newer fmt of its own beside its headers, which a linked libfmt would not match.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
# Highway's headers alone: its library would only tell what the CPU can do.
find_path(SELF_ATTENTION_HIGHWAY_INCLUDE_DIR hwy/highway.h REQUIRED)
# Debian's libdeflate has no package file for CMake.
find_path(SELF_ATTENTION_LIBDEFLATE_INCLUDE_DIR libdeflate.h REQUIRED)
find_library(SELF_ATTENTION_LIBDEFLATE_LIBRARY deflate REQUIRED)
add_library(self_attention_libdeflate INTERFACE)
target_include_directories(self_attention_libdeflate SYSTEM
                           INTERFACE ${SELF_ATTENTION_LIBDEFLATE_INCLUDE_DIR})
target_link_libraries(self_attention_libdeflate INTERFACE ${SELF_ATTENTION_LIBDEFLATE_LIBRARY})
if(SELF_ATTENTION_BUILD_TOOLS OR SELF_ATTENTION_BUILD_TESTS)
  find_package(CLI11 REQUIRED)
  find_package(benchmark REQUIRED)
endif()
if(SELF_ATTENTION_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
