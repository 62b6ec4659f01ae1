# Compiles through ccache if it is installed. Paths below the checkout are hashed as relative paths, so that every checkout of a source
# finds what another one has compiled (continuous integration, and a bare system that has the cache mounted).
option(TERRACE_CCACHE "Compile through ccache where it is installed" ON)
find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(NOT TERRACE_CCACHE OR NOT CCACHE OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
# ccache compares a precompiled header by its contents, and ignores macros that a compilation does not use.
set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # g++ names the precompiled header in what ccache hashes
endif()
