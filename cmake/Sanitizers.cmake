# -DSELF_ATTENTION_SANITIZE="address;undefined" builds everything with those sanitizers.
set(SELF_ATTENTION_SANITIZE "" CACHE STRING "Sanitizers to build with, a list: address;undefined")
if(SELF_ATTENTION_SANITIZE)
  list(JOIN SELF_ATTENTION_SANITIZE "," _sanitizers)
  add_compile_options(-fsanitize=${_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # LibTorch hides the type information of some of its classes, which the vptr check needs.
  add_compile_options(-fno-sanitize=vptr)
  add_link_options(-fsanitize=${_sanitizers})
endif()
