# Run by every build: writes a source with the commit of SOURCE into OUTPUT. If the file is already right, it is left alone, so that nothing
# is compiled again. A folder inside of another project's checkout has no commit of its own.
#   cmake -DSOURCE=… -DOUTPUT=… -DGIT=… -P commit.cmake
set(commit unknown)
if(GIT)
  file(REAL_PATH ${SOURCE} source)
  execute_process(COMMAND ${GIT} -C ${source} rev-parse --show-toplevel
    OUTPUT_VARIABLE top RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(status EQUAL 0 AND top STREQUAL source)
    execute_process(COMMAND ${GIT} --no-optional-locks -C ${source} describe --always --exclude=* --abbrev=12 --dirty=+changes
      OUTPUT_VARIABLE described RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(status EQUAL 0)
      set(commit ${described})
    endif()
  endif()
endif()
set(text "#include <terrace/examples/terrace/cli/build_facts.h>

namespace terrace::cli {

std::string_view build_commit() { return \"${commit}\"; }

}  // namespace terrace::cli
")
set(written "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} written)
endif()
if(NOT written STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
