# Options, compiler flags, and the helpers that every folder uses.
option(TERRACE_PROGRAM "Build the program; OFF: only the library, without tests and benchmarks, which need the program's parts" ON)
include(CMakeDependentOption)
cmake_dependent_option(TERRACE_TESTS "Build the tests" ON TERRACE_PROGRAM OFF)
cmake_dependent_option(TERRACE_BENCH "Build the benchmarks of single parts (Google Benchmark); terrace bench is always there" ON TERRACE_PROGRAM OFF)
option(TERRACE_WERROR "Warnings are errors: for those who change terrace, with the compilers that they test" OFF)
option(TERRACE_RELOCATABLE "For packages: modules are not searched in this build's folder" OFF)
set(TERRACE_CUDA AUTO CACHE STRING "AUTO (where there is a GPU), ON or OFF")
set(TERRACE_CUDA12_TOOLKIT "" CACHE PATH "A toolkit of CUDA 12, for a second module for older drivers; empty: none")
set(TERRACE_MPI AUTO CACHE STRING "AUTO, ON or OFF")
set(TERRACE_NCCL AUTO CACHE STRING "AUTO, ON or OFF")
set(TERRACE_POOL tbb CACHE STRING "The thread pool: tbb, or std (for ThreadSanitizer)")
set(TERRACE_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
option(TERRACE_SANITIZE_UPDATES "Sanitizers check the optimizers' loops, too: minutes of compiling a file" ON)
option(TERRACE_COVERAGE "Instrument for gcov" OFF)
option(TERRACE_UNITY "Compile the libraries' sources ten at a time: a whole build takes half the time, a changed file takes longer" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # no NDEBUG: asserts must also hold in release builds

# Every target includes <terrace/core/…>; the link keeps the repository's top level free of an include/ folder.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/terrace SYMBOLIC)

add_library(terrace_flags INTERFACE)
target_compile_features(terrace_flags INTERFACE cxx_std_20)
set(cxx_options
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
  # g++ 12 warns of overflows in fmt and null pointers in streambuf that do not exist.
  -Wno-stringop-overflow
  # The rounding of every product and sum is promised, so the compiler may only use an fma where the source writes one.
  -ffp-contract=off -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  list(APPEND cxx_options -Wno-unknown-warning-option -Wno-unknown-pragmas)  # for warnings and pragmas of g++
endif()
# nvcc generates host code that is not ours, so only nvcc's own warnings and the plain ones of the host compiler are on. Local memory holds
# what did not fit into registers, so its use is a warning. Line numbers are for profilers, and cost no speed.
set(cuda_options --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fno-omit-frame-pointer -lineinfo
  -Xptxas=-warn-spills,-warn-lmem-usage)
if(TERRACE_WERROR)
  list(APPEND cxx_options -Werror)
  list(APPEND cuda_options -Werror=all-warnings -Xcompiler=-Werror -Xptxas=-Werror)
endif()
target_compile_options(terrace_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>" "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
if(TERRACE_SANITIZE)
  # With sanitizers, g++ 12 warns of the use of empty optionals that are only moved. The release build keeps that warning.
  target_compile_options(terrace_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TERRACE_SANITIZE};-fno-sanitize-recover=all;-g1;-Wno-maybe-uninitialized>")
  target_link_options(terrace_flags INTERFACE -fsanitize=${TERRACE_SANITIZE})
endif()
if(TERRACE_COVERAGE)
  target_compile_options(terrace_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:--coverage;-g>")
  target_link_options(terrace_flags INTERFACE --coverage)
endif()

# For code that spends its time in the libraries that it calls. It compiles in a third of the time.
set(TERRACE_COLD $<$<CONFIG:Release>:-O1>)

# Leaves out the sources of other processors. X_x86_64.cpp and X_avx….cpp are for x86-64; elsewhere, X_portable.cpp takes their place.
function(terrace_sources_of_processor sources)
  set(others "_portable\\.cpp$")
  if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    set(others "_(x86_64|avx[0-9a-z]*)\\.cpp$")
  endif()
  list(FILTER ${sources} EXCLUDE REGEX "${others}")
  set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()

# terrace_library(NAME SOURCES … [LINK …] [PRIVATE …] [COLD]): the static library of one folder.
function(terrace_library name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  terrace_sources_of_processor(ARG_SOURCES)
  add_library(terrace_${name} STATIC ${ARG_SOURCES})
  add_library(terrace::${name} ALIAS terrace_${name})
  set_target_properties(terrace_${name} PROPERTIES EXPORT_NAME ${name} UNITY_BUILD ${TERRACE_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  target_include_directories(terrace_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_link_libraries(terrace_${name} PUBLIC ${ARG_LINK} PRIVATE $<BUILD_INTERFACE:terrace_flags> ${ARG_PRIVATE})
  target_compile_features(terrace_${name} PUBLIC cxx_std_20)
  # Headers are precompiled once for all libraries with the same flags. math has OpenMP's flags, and cold libraries optimise less.
  set(like terrace_memory)
  if(ARG_COLD)
    target_compile_options(terrace_${name} PRIVATE ${TERRACE_COLD})
    set(like terrace_bench)
  endif()
  if(TARGET ${like} AND NOT like STREQUAL terrace_${name})
    target_precompile_headers(terrace_${name} REUSE_FROM ${like})
  else()
    target_precompile_headers(terrace_${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  endif()
endfunction()

# terrace_own_flags([TARGET t] SOURCES … FLAGS …): compiles sources with flags that the precompiled headers do not have. TARGET is needed if
# the call is in another folder than the target.
function(terrace_own_flags)
  cmake_parse_arguments(ARG "" "TARGET" "SOURCES;FLAGS" ${ARGN})
  set(where "")
  if(ARG_TARGET)
    set(where TARGET_DIRECTORY ${ARG_TARGET})
  endif()
  set_source_files_properties(${ARG_SOURCES} ${where} PROPERTIES COMPILE_OPTIONS "${ARG_FLAGS}" SKIP_PRECOMPILE_HEADERS ON
    SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# GoogleTest's headers take longer to parse than most tests to compile. A test's own code is not optimised, because compiling it would take
# half of a build. Programs whose reference results take long to compute have COMPUTES, and folders of such programs set
# TERRACE_TESTS_COMPUTE.
function(terrace_precompile_test target)
  set(headers terrace_test_headers)
  set(optimise $<$<CONFIG:Release>:-O0>)
  if(TERRACE_TESTS_COMPUTE)
    set(headers terrace_computing_test_headers)
    set(optimise ${TERRACE_COLD})
  endif()
  if(NOT TARGET ${headers})
    file(WRITE ${PROJECT_BINARY_DIR}/${headers}.cpp "")
    add_library(${headers} OBJECT ${PROJECT_BINARY_DIR}/${headers}.cpp)
    target_link_libraries(${headers} PRIVATE terrace_flags GTest::gmock fmt::fmt)
    target_compile_options(${headers} PRIVATE ${optimise} -fPIE)  # as CMake compiles programs
    set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_precompile_headers(${headers} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  target_compile_options(${target} PRIVATE ${optimise})
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()

# terrace_test(NAME SOURCES … LINK … [SLOW] [COMPUTES] [GPU] [TIMEOUT s] [PREFIX p] [FILTER f]): one GoogleTest program. Each TEST is one
# ctest entry with the label NAME.quick, or NAME.slow if the program takes more than twenty seconds (`ctest -L NAME` finds both). A skipped
# test is shown as skipped. If several programs share sources, PREFIX precedes the names of the entries, and FILTER selects tests like
# --gtest_filter. GPU: the tests can only run on a GPU.
function(terrace_test name)
  cmake_parse_arguments(ARG "SLOW;COMPUTES;GPU" "TIMEOUT;PREFIX;FILTER" "SOURCES;LINK" ${ARGN})
  set(speed quick)
  if(ARG_SLOW)
    set(speed slow)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  terrace_sources_of_processor(ARG_SOURCES)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_flags ${ARG_LINK} GTest::gmock GTest::gtest_main)
  if(ARG_COMPUTES)
    set(TERRACE_TESTS_COMPUTE ON)
  endif()
  terrace_precompile_test(${name})
  set_property(TARGET ${name} PROPERTY TERRACE_LABEL ${name}.${speed})
  if(ARG_GPU AND NOT EXISTS /dev/nvidiactl)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: no GPU was here when this build was configured")
    set_tests_properties(${name} PROPERTIES LABELS ${name}.${speed} SKIP_REGULAR_EXPRESSION skipped)
  else()
    gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" TEST_FILTER "${ARG_FILTER}"
      PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${name}.${speed} DISCOVERY_TIMEOUT 120)
  endif()
endfunction()

# terrace_test_suite(NAME PROGRAM FILTER [ONE_IN N]): tests with so many parameters that they are one ctest entry, in one process. None of
# them may skip, because that would not be seen. ONE_IN: continuous integration runs every N-th test, and `tests/long.sh cases` runs all of
# them. These entries take long, so they start first.
function(terrace_test_suite name program filter)
  cmake_parse_arguments(ARG "" "ONE_IN" "" ${ARGN})
  add_test(NAME ${name} COMMAND ${program} --gtest_brief=1 --gtest_filter=${filter})
  get_property(label TARGET ${program} PROPERTY TERRACE_LABEL)
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 COST 60 FAIL_REGULAR_EXPRESSION "  SKIPPED ")
  if(ARG_ONE_IN)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_ONE_IN};GTEST_SHARD_INDEX=0")
  endif()
endfunction()
