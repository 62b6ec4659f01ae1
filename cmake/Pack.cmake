# `cpack -G TGZ` makes an archive that runs where it is unpacked (the component `folder`, Folder.cmake). `cpack -G DEB` makes Debian
# packages, one for each component of Install.cmake. cmake/pack.sh makes both, and a wheel from the archive.
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME terrace)
set(CPACK_PACKAGE_VENDOR terrace)
set(CPACK_PACKAGE_CONTACT "the owners of terrace <nobody@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains language models that do not fit in memory")
set(CPACK_PACKAGE_FILE_NAME terrace-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/pack_components.cmake)
set(CPACK_TERRACE_DEBS program library)  # components

# A package is for one release of Debian, because each release has other versions of the libraries.
set(release "")
if(EXISTS /etc/os-release)
  file(STRINGS /etc/os-release release REGEX "^VERSION_ID=")
  string(REGEX REPLACE "[^0-9.]" "" release "${release}")
endif()
set(CPACK_DEBIAN_PACKAGE_RELEASE 1~deb${release})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(same_version "terrace (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME terrace)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "terrace-mpi, terrace-cuda")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "The program, its manual page and the completions of shells.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libterrace-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
# What the static libraries link with, as in terraceConfig.cmake.in.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
  "pkg-config, libfmt-dev, libdnnl-dev, nlohmann-json3-dev, liburing-dev, libxxhash-dev, libtbb-dev, libnuma-dev, \
libpcre2-dev, libsentencepiece-dev, zlib1g-dev, libzstd-dev")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The static libraries, their headers and a package for CMake's find_package(terrace).")

if(TARGET terrace_mpi)
  list(APPEND CPACK_TERRACE_DEBS mpi)
  set(CPACK_DEBIAN_MPI_PACKAGE_NAME terrace-mpi)
  set(CPACK_DEBIAN_MPI_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "${same_version}, openmpi-bin")
  set(CPACK_COMPONENT_MPI_DESCRIPTION "The module for several ranks, which are started by Open MPI.")
endif()
if(TARGET terrace_cuda)
  list(APPEND CPACK_TERRACE_DEBS cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME terrace-cuda)
  # No shlibdeps: the module needs the same Debian libraries as the program, and cuBLASLt and the driver are NVIDIA's.
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS ${same_version})
  set(CPACK_DEBIAN_CUDA_PACKAGE_SUGGESTS libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR})
  set(CPACK_COMPONENT_CUDA_DESCRIPTION "The module for NVIDIA's GPUs, which needs their driver and CUDA's cuBLASLt.")
  # The file as NVIDIA's toolkit names it, or as NVIDIA's Python packages name it.
  set(toolkit ${CUDAToolkit_BIN_DIR}/..)
  find_file(TERRACE_CUDA_LICENCE EULA.txt PATHS ${toolkit} NO_DEFAULT_PATH)
  file(GLOB runtimes ${toolkit}/dist-info/nvidia_cuda_runtime-*/licenses)
  find_file(TERRACE_CUDA_LICENCE License.txt PATHS ${runtimes} NO_DEFAULT_PATH)
endif()
include(CPack)

# terrace_notices(COMPONENT PACKAGE [CUDA] [SHIPPED PROGRAM…] COMPILED_IN PACKAGE…): adds the files `copyright` and `changelog.md` to the
# package. A whole `cmake --install` leaves them out.
function(terrace_notices component package)
  cmake_parse_arguments(ARG "CUDA" "" "SHIPPED;COMPILED_IN" ${ARGN})
  set(cuda "")
  if(ARG_CUDA AND TARGET terrace_cuda)
    set(cuda ${TERRACE_CUDA_LICENCE})
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/docs/changelog.md DESTINATION share/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(CODE "
    set(OUT \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/${package}/copyright)
    set(WHAT [==[${package} ${PROJECT_VERSION}]==])
    set(SHIPPED [==[${ARG_SHIPPED}]==])
    set(NOT_SHIPPED [==[${not_in_folder}]==])
    set(COMPILED_IN [==[${ARG_COMPILED_IN}]==])
    set(CUDA_LICENCE [==[${cuda}]==])
    include([==[${PROJECT_SOURCE_DIR}/cmake/notices.cmake]==])" COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
set(templates nlohmann-json3-dev libfmt-dev libtbb-dev)  # every part of terrace has code of their headers compiled in
terrace_notices(folder terrace CUDA SHIPPED $<TARGET_FILE:terrace_program> COMPILED_IN ${templates} libcli11-dev libtomlplusplus-dev)
terrace_notices(program terrace COMPILED_IN ${templates} libcli11-dev libtomlplusplus-dev)
terrace_notices(library libterrace-dev COMPILED_IN ${templates})
if(TARGET terrace_mpi)
  terrace_notices(mpi terrace-mpi COMPILED_IN ${templates})
endif()
if(TARGET terrace_cuda)
  terrace_notices(cuda terrace-cuda CUDA COMPILED_IN ${templates})
endif()
