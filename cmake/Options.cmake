# Options, compiler flags, and the two helpers every folder uses.
option(TERRACE_TESTS "Build the tests" ON)
option(TERRACE_BENCH "Build the benchmarks of single parts (Google Benchmark); terrace bench is always there" ON)
option(TERRACE_WERROR "Warnings are errors" ON)
set(TERRACE_CUDA AUTO CACHE STRING "AUTO, ON or OFF")
set(TERRACE_MPI AUTO CACHE STRING "AUTO, ON or OFF")
set(TERRACE_NCCL AUTO CACHE STRING "AUTO, ON or OFF")
set(TERRACE_POOL tbb CACHE STRING "The thread pool: tbb, or std (for ThreadSanitizer)")
set(TERRACE_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
option(TERRACE_COVERAGE "Instrument for gcov" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
set(CMAKE_CXX_FLAGS_RELEASE "-O3")  # no NDEBUG: an assert that vanishes in release builds is a rival's defect

# Every target includes <terrace/core/…>; the link keeps the repository's top level free of an include/ folder.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/terrace SYMBOLIC)

add_library(terrace_flags INTERFACE)
target_compile_features(terrace_flags INTERFACE cxx_std_20)
set(cxx_options
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
  # g++ 12 sees overflows in fmt and null pointers in streambuf that are not there.
  -Wno-stringop-overflow
  # The rounding of every product and sum is part of the product: no contraction unless the source writes an fma.
  -ffp-contract=off -fno-omit-frame-pointer)
# nvcc writes host code that is not ours: its warnings are those of nvcc itself and the plain ones of the host compiler.
set(cuda_options --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fno-omit-frame-pointer)
if(TERRACE_WERROR)
  list(APPEND cxx_options -Werror)
  list(APPEND cuda_options -Werror=all-warnings -Xcompiler=-Werror)
endif()
target_compile_options(terrace_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>" "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
if(TERRACE_SANITIZE)
  target_compile_options(terrace_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TERRACE_SANITIZE};-fno-sanitize-recover=all;-g1>")
  target_link_options(terrace_flags INTERFACE -fsanitize=${TERRACE_SANITIZE})
endif()
if(TERRACE_COVERAGE)
  target_compile_options(terrace_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:--coverage;-g>")
  target_link_options(terrace_flags INTERFACE --coverage)
endif()

# terrace_library(NAME SOURCES … [LINK …] [PRIVATE …]): the static library of one folder.
function(terrace_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  add_library(terrace_${name} STATIC ${ARG_SOURCES})
  add_library(terrace::${name} ALIAS terrace_${name})
  set_target_properties(terrace_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(terrace_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_link_libraries(terrace_${name} PUBLIC ${ARG_LINK} PRIVATE $<BUILD_INTERFACE:terrace_flags> ${ARG_PRIVATE})
  target_compile_features(terrace_${name} PUBLIC cxx_std_20)
endfunction()

# For code whose time is spent in the libraries that it calls: it is compiled in a third of the time.
set(TERRACE_COLD $<$<CONFIG:Release>:-O1>)

# terrace_test(NAME SOURCES … LINK … [TIMEOUT s] [PREFIX p] [FILTER f]): one GoogleTest program; each TEST is one ctest entry, a
# skip is shown as a skip, and `ctest -L NAME` runs the program's. For sources that several programs share, PREFIX comes before
# the entries' names, and FILTER is as --gtest_filter.
function(terrace_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PREFIX;FILTER" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_flags ${ARG_LINK} GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${TERRACE_COLD})
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" TEST_FILTER "${ARG_FILTER}" PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${name} DISCOVERY_TIMEOUT 120)
endfunction()
