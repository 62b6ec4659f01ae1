# Prints what was found, in one block, so that the contents of a build are known.
message(STATUS "terrace ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, program ${TERRACE_PROGRAM}, tests ${TERRACE_TESTS}, pool ${TERRACE_POOL}, sanitizers '${TERRACE_SANITIZE}'")
message(STATUS "  CUDA compiler ${TERRACE_HAS_CUDA} · MPI ${TERRACE_HAS_MPI} · NCCL ${TERRACE_HAS_NCCL} · PCRE2 ${PCRE2_FOUND} · sentencepiece ${SENTENCEPIECE_FOUND} · zlib ${ZLIB_FOUND} · zstd ${ZSTD_FOUND}")
