# Builds hello_libtorch against an installed terrace and PyTorch's libtorch, and runs it. Skipped where python3 has no torch.
# BUILD: the build to install; PROJECT; SOURCES: of the example; SCRATCH.
execute_process(COMMAND python3 -c "import os, torch; print(os.path.dirname(torch.__file__))"
  RESULT_VARIABLE failed OUTPUT_VARIABLE torch ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message("skipped: python3 has no torch, whose libtorch the example needs")
  return()
endif()
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH}/disk)
foreach(step
  "${CMAKE_COMMAND};--install;${BUILD};--prefix;${SCRATCH}/prefix;--component;library"
  "${CMAKE_COMMAND};-S;${PROJECT};-B;${SCRATCH}/build;-G;${GENERATOR};-DCMAKE_BUILD_TYPE=Release;-DCMAKE_CXX_COMPILER=${COMPILER};-DTORCH=${torch};-DSOURCES=${SOURCES};-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix"
  "${CMAKE_COMMAND};--build;${SCRATCH}/build"
  "${SCRATCH}/build/hello_libtorch;${SCRATCH}/disk")
  execute_process(COMMAND ${step} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${step}: ${failed}\n${output}")
  endif()
endforeach()
message("${output}")
file(REMOVE_RECURSE ${SCRATCH})
