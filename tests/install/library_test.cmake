# With TERRACE_PROGRAM=OFF, the library is configured without the dependencies of the program, and the build has no program.
file(REMOVE_RECURSE ${SCRATCH})
set(absent "")
foreach(package CLI11 tomlplusplus GTest benchmark)
  list(APPEND absent -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCES} -B ${SCRATCH} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER} -DTERRACE_CUDA=OFF
    -DTERRACE_PROGRAM=OFF ${absent}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the library alone was not configured:\n${output}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH} --target help OUTPUT_VARIABLE targets COMMAND_ERROR_IS_FATAL ANY)
if(NOT targets MATCHES "libterrace_parallel_run\\.a" OR NOT targets MATCHES "libterrace_lm_chat\\.a" OR targets MATCHES "terrace_program|terrace_cli|_test:")
  message(FATAL_ERROR "the build of the library alone has other parts:\n${targets}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
