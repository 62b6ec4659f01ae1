# The installation of a package's component includes this file (Pack.cmake). It writes OUT, the package's file `copyright`: the terms of
# terrace, and the notices of everything else in the package.
#   SHIPPED      programs whose shared libraries are in the package, except those that NOT_SHIPPED matches
#   COMPILED_IN  Debian packages whose headers are compiled in
#   CUDA_LICENCE the licence of CUDA's static runtime, or a path that was not found; empty: the package has nothing of CUDA
# The notices come from Debian's packages. If libraries are shipped, the texts in /usr/share/common-licenses that the notices name follow,
# because the package may go to a system without them.
cmake_policy(VERSION 3.25)

function(add_notice title file)
  string(REPEAT "=" 100 line)
  file(READ ${file} words)
  string(APPEND text "\n${line}\n${title}\n${line}\n\n${words}")
  set(text "${text}" PARENT_SCOPE)
endfunction()

function(write_notices)
  set(owners ${COMPILED_IN})
  set(missing "")
  if(SHIPPED)
    file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${SHIPPED} PRE_EXCLUDE_REGEXES ${NOT_SHIPPED} RESOLVED_DEPENDENCIES_VAR libraries)
    foreach(library IN LISTS libraries)
      # /lib is a link to /usr/lib, and some packages of Debian 12 still list their files as those of /lib.
      file(REAL_PATH ${library} file)
      string(REGEX REPLACE "^/usr/lib/" "/lib/" listed ${file})
      execute_process(COMMAND dpkg-query -S ${file} ${listed} OUTPUT_VARIABLE owner ERROR_QUIET)
      if(owner)
        string(REGEX REPLACE ":.*" "" owner "${owner}")
        list(APPEND owners ${owner})
      else()
        list(APPEND missing ${library})
      endif()
    endforeach()
  endif()

  set(text "${WHAT}

No licence has been chosen for terrace yet. Until its owners choose one, all rights in it are reserved.
What follows are the notices of other libraries in this package: shared libraries, or code that is compiled into its files.
")
  set(licences "")
  list(REMOVE_DUPLICATES owners)
  foreach(owner IN LISTS owners)
    execute_process(COMMAND dpkg-query -W -f "\${source:Package} \${source:Version}" ${owner}
      OUTPUT_VARIABLE source RESULT_VARIABLE status ERROR_QUIET)
    set(notice /usr/share/doc/${owner}/copyright)
    if(status EQUAL 0 AND EXISTS ${notice})
      add_notice("${owner}, of Debian's source package ${source}" ${notice})
      file(STRINGS ${notice} lines REGEX "/usr/share/common-licenses/")
      string(REGEX MATCHALL "/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]" named "${lines}")
      list(APPEND licences ${named})
    else()
      list(APPEND missing ${owner})
    endif()
  endforeach()
  if(EXISTS "${CUDA_LICENCE}")
    add_notice("the runtime of CUDA, which the CUDA module has in it" ${CUDA_LICENCE})
  elseif(NOT "${CUDA_LICENCE}" STREQUAL "")
    list(APPEND missing "the runtime of CUDA")
  endif()
  if(SHIPPED)
    list(REMOVE_DUPLICATES licences)
    foreach(licence IN LISTS licences)
      if(EXISTS ${licence})
        add_notice(${licence} ${licence})
      endif()
    endforeach()
  endif()
  foreach(name IN LISTS missing)
    message(WARNING "no notice of ${name} was found, because it is not of a Debian package: add it before others get this package")
    string(APPEND text "\nNO NOTICE WAS FOUND: ${name}\n")
  endforeach()
  file(WRITE ${OUT} "${text}")
endfunction()
write_notices()
