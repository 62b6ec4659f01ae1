# Finds oneDNN by its header and its library. Debian's own CMake file of oneDNN also demands OpenCL's headers, which terrace does not use
# and which Debian does not install with oneDNN.
#
# Sets OneDNN_FOUND and OneDNN_VERSION, and defines DNNL::dnnl unless a project has found that target itself.
find_path(OneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(OneDNN_LIBRARY dnnl)
if(OneDNN_INCLUDE_DIR)
  # In Debian 13, the numbers are behind `#define DNNL_VERSION_MAJOR`, in this header or in one that it includes.
  set(parts "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" line REGEX "define DNNL_VERSION_${part} +[0-9]+")
    string(REGEX MATCH "[0-9]+" number "${line}")
    list(APPEND parts "${number}")
  endforeach()
  list(JOIN parts "." OneDNN_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR VERSION_VAR OneDNN_VERSION
  REASON_FAILURE_MESSAGE "install oneDNN (on Debian and Ubuntu: libdnnl-dev)")
if(OneDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION "${OneDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}")
endif()
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)
