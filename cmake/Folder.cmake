# `cmake --install BUILD --prefix DIR --component folder` puts the program, its modules and the few libraries that they need into one folder
# that runs on another machine. Some libraries are never copied, because that machine has its own: CUDA's and the driver's, glibc, and the
# compiler's (libstdc++, libgcc_s), which every system has, and which need a newer glibc than terrace does.
set(folder_libraries lib/terrace)
set(not_in_folder "^libcu" "^libnv" "^libnccl" "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so")
install(TARGETS terrace_program RUNTIME_DEPENDENCY_SET terrace_folder
  RUNTIME DESTINATION bin COMPONENT folder EXCLUDE_FROM_ALL)
if(TARGET terrace_cuda)
  install(TARGETS terrace_cuda RUNTIME_DEPENDENCY_SET terrace_folder
    LIBRARY DESTINATION ${folder_libraries} COMPONENT folder EXCLUDE_FROM_ALL)
endif()
if(TARGET terrace_cuda12)
  install_cuda12(COMPONENT folder EXCLUDE_FROM_ALL)
endif()
if(TARGET terrace_mpi)  # works if that machine has the same MPI
  install(TARGETS terrace_mpi LIBRARY DESTINATION ${folder_libraries} COMPONENT folder EXCLUDE_FROM_ALL)
endif()
install(RUNTIME_DEPENDENCY_SET terrace_folder PRE_EXCLUDE_REGEXES ${not_in_folder}
  LIBRARY DESTINATION ${folder_libraries} COMPONENT folder EXCLUDE_FROM_ALL)
# The old kind of rpath also applies to the libraries that these libraries need.
target_link_options(terrace_program PRIVATE -Wl,--disable-new-dtags)
set_target_properties(terrace_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${folder_libraries}")
# `--component folder-tests` puts the tests that need a GPU beside the program, after they are built.
foreach(test core_devices_test gpu_math_test gpu_kernels_test gpu_layers_test)
  if(TARGET ${test})
    install(TARGETS ${test} RUNTIME DESTINATION tests COMPONENT folder-tests EXCLUDE_FROM_ALL)
    target_link_options(${test} PRIVATE -Wl,--disable-new-dtags)
    set_target_properties(${test} PROPERTIES INSTALL_RPATH "$ORIGIN/../${folder_libraries}")
  endif()
endforeach()
