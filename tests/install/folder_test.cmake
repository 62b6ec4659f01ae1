# The folder that runs elsewhere: the program runs from it, everything that it loads but glibc is in it, and nothing of CUDA's.
file(REMOVE_RECURSE ${SCRATCH})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH} --component folder
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the folder could not be made:\n${output}")
endif()

file(GLOB_RECURSE files RELATIVE ${SCRATCH} ${SCRATCH}/*)
foreach(file IN LISTS files)
  if(file MATCHES "lib(cu|nv|nccl)")
    message(FATAL_ERROR "${file} is the other machine's own")
  endif()
endforeach()

execute_process(COMMAND ldd ${SCRATCH}/bin/terrace OUTPUT_VARIABLE loaded COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "lib[^ ]+ => [^ \n]+" libraries "${loaded}")
list(LENGTH libraries count)
if(count LESS 5)
  message(FATAL_ERROR "only ${count} libraries: ${loaded}")
endif()
foreach(library IN LISTS libraries)
  string(FIND "${library}" "=> ${SCRATCH}/" inside)
  if(inside EQUAL -1 AND NOT library MATCHES "^lib(c|m|dl|rt|pthread)\\.so")
    message(FATAL_ERROR "from outside of the folder: ${library}")
  endif()
endforeach()

execute_process(COMMAND ${SCRATCH}/bin/terrace --version
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "terrace --version ended with ${status}:\n${output}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
