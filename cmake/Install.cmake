include(CMakePackageConfigHelpers)

set(SELF_ATTENTION_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/SelfAttention)

install(TARGETS self_attention EXPORT SelfAttentionTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(SELF_ATTENTION_BUILD_TOOLS)
  install(TARGETS self-attention RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT SelfAttentionTargets NAMESPACE SelfAttention::
        DESTINATION ${SELF_ATTENTION_PACKAGE_DIR})

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/SelfAttentionConfig.cmake.in
  ${PROJECT_BINARY_DIR}/SelfAttentionConfig.cmake
  INSTALL_DESTINATION ${SELF_ATTENTION_PACKAGE_DIR})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/SelfAttentionConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SelfAttentionConfig.cmake
              ${PROJECT_BINARY_DIR}/SelfAttentionConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/SelfAttentionTorch.cmake
        DESTINATION ${SELF_ATTENTION_PACKAGE_DIR})
