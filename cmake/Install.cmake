# `cmake --install` gives the program, headers under include/terrace/…, the static libraries, and a package for
# find_package(terrace). Components: `program`, `library`, `mpi` and `cuda` (the modules).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS terrace terrace_device terrace_math terrace_core terrace_memory terrace_offload terrace_optimizers terrace_optimizer_state ${TERRACE_PARALLEL_LIBRARIES} terrace_parallel
  terrace_testing_disk terrace_testing_ranks terrace_testing
  EXPORT terraceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(TARGETS terrace_c EXPORT terraceTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(FILES ${PROJECT_SOURCE_DIR}/optimizers/c/terrace.h DESTINATION include COMPONENT library)
install(FILES ${PROJECT_BINARY_DIR}/optimizers/c/terrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
# Its own file of targets, because it links with libraries that a program without a language model does not need.
install(TARGETS terrace_lm ${TERRACE_LM_LIBRARIES}
  EXPORT terraceLmTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
if(TERRACE_PROGRAM)
  install(TARGETS terrace_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()
foreach(folder core memory offload optimizers parallel examples/lm tests/doubles)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION include/terrace/${folder} COMPONENT library
    FILES_MATCHING PATTERN "*.h" PATTERN "*_list.inl"
    REGEX "/optimizers/c$|/cuda$|/(mpi_[a-z]+|machine_window|nccl_[a-z]+|real_nccl)\\.h$" EXCLUDE)  # internals of the modules, and the C interface
endforeach()
foreach(targets terraceTargets terraceLmTargets)
  install(EXPORT ${targets} NAMESPACE terrace:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/terrace COMPONENT library)
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/terraceConfig.cmake.in ${PROJECT_BINARY_DIR}/terraceConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/terrace)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/terraceConfig.cmake ${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/terrace COMPONENT library)
