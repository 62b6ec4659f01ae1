# Installs the build under a scratch prefix, builds an external project against it, and runs the result. If a library that
# terrace links is missing, find_package() names it; the project may continue without terrace.
file(REMOVE_RECURSE ${SCRATCH})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DSOURCES=${SOURCES})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/hello_offload ${SCRATCH}/disk)
message("${output}")
if(NOT output MATCHES "every one is exact")
  message(FATAL_ERROR "the program said something else")
endif()
run(${SCRATCH}/build/hello_trainer ${SOURCES}/hello_trainer.cpp)
message("${output}")
if(NOT output MATCHES "nats a byte, after 200 steps")
  message(FATAL_ERROR "the trainer said something else")
endif()

run(${SCRATCH}/prefix/bin/terrace --version)
string(REGEX MATCH "^terrace ([0-9.]+)" matched "${output}")
set(version ${CMAKE_MATCH_1})
file(GLOB_RECURSE package ${SCRATCH}/prefix/terraceConfigVersion.cmake)
file(STRINGS "${package}" packaged REGEX "set\\(PACKAGE_VERSION \"${version}\"\\)")
if(NOT version OR NOT packaged)
  message(FATAL_ERROR "the installed program is of another version than the package ${package}: ${output}")
endif()
foreach(page man/man1/terrace.1=man bash-completion/completions/terrace=completions:bash
    zsh/site-functions/_terrace=completions:zsh fish/vendor_completions.d/terrace.fish=completions:fish)
  string(REGEX REPLACE ".*=" "" words ${page})
  string(REGEX REPLACE "=.*" "" page ${page})
  string(REPLACE ":" ";" words ${words})
  run(${SCRATCH}/prefix/bin/terrace ${words})
  file(READ ${SCRATCH}/prefix/share/${page} installed)
  if(NOT installed STREQUAL output)
    message(FATAL_ERROR "the installed ${page} is not what the program prints")
  endif()
endforeach()

# configure(NAME STATUS SAID OPTION…): configuring the project with these options must end with STATUS and print SAID.
function(configure name expected said)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARGN} ${CMAKE_COMMAND} -S ${PROJECT}/optional -B ${SCRATCH}/${name} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DASKED=${name}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " words "${output}")  # CMake breaks lines
  string(FIND "${words}" "${said}" found)
  if(found EQUAL -1 OR NOT status EQUAL expected)
    message(FATAL_ERROR "${name} ended with ${status}, not ${expected}, or does not say \"${said}\":\n${output}")
  endif()
endfunction()
set(without_libraries PKG_CONFIG_LIBDIR=${SCRATCH}/none PKG_CONFIG_PATH=${SCRATCH}/none)
configure(required 1 "not what it links with: liburing (liburing-dev), xxHash (libxxhash-dev)" ${without_libraries})
configure(optional 0 "goes on without terrace" ${without_libraries})
configure(optional_again 0 "goes on with terrace")
configure(offload 0 "goes on with terrace")
configure(offlaod 1 "terrace has no component offlaod; it has core, memory, offload")

# Headers of the source tree must not be needed: only the prefix may be referenced.
file(GLOB_RECURSE headers ${SCRATCH}/prefix/include/*.h)
list(LENGTH headers count)
if(count LESS 20)
  message(FATAL_ERROR "only ${count} headers were installed")
endif()
file(REMOVE_RECURSE ${SCRATCH})
