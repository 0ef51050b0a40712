# Finds LibTorch, also a CUDA build of it on a machine without a CUDA toolkit.
#
# Torch's own package file stops without a whole toolkit, although a program that has no CUDA source
# needs nothing of it: the wheel carries the run-time libraries. Torch skips its toolkit search when
# torch::cudart exists, so the targets that it would have made are declared first, empty.
#
# self_attention_find_torch(IGNORE_TOOLKIT | USE_TOOLKIT): IGNORE_TOOLKIT never looks for one.
# USE_TOOLKIT leaves the search to Torch where a toolkit is installed, since a consumer with CUDA
# sources of its own counts on what Torch defines then.
macro(self_attention_find_torch toolkit)
  if(NOT TARGET torch)
    set(_self_attention_toolkit FALSE)
    if("${toolkit}" STREQUAL "USE_TOOLKIT")
      find_package(CUDAToolkit QUIET)
      set(_self_attention_toolkit ${CUDAToolkit_FOUND})
    endif()
    if(NOT _self_attention_toolkit)
      foreach(_self_attention_target cudart nvtoolsext nvtx3)
        if(NOT TARGET torch::${_self_attention_target})
          add_library(torch::${_self_attention_target} INTERFACE IMPORTED)
        endif()
      endforeach()
    endif()
    find_package(Torch REQUIRED)
  endif()
endmacro()
