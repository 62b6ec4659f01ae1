# The second CUDA module, for drivers that do not support CUDA 13 yet: the same sources, compiled by another toolkit. CMake has one CUDA
# compiler for each build, so a second build inside of this one makes the module, its only target.
if(NOT TERRACE_CUDA12_TOOLKIT)
  return()
endif()
if(CUDAToolkit_VERSION_MAJOR EQUAL 12)
  message(FATAL_ERROR "TERRACE_CUDA12_TOOLKIT is for a build whose toolkit is newer; this one's is CUDA ${CUDAToolkit_VERSION}")
endif()
set(nvcc ${TERRACE_CUDA12_TOOLKIT}/bin/nvcc)
if(NOT EXISTS ${nvcc})
  message(FATAL_ERROR "TERRACE_CUDA12_TOOLKIT: there is no ${nvcc}")
endif()
include(ExternalProject)
set(folder ${PROJECT_BINARY_DIR}/cuda12)
set(module ${TERRACE_MODULE_FOLDER}/terrace_cuda12.so)
string(REPLACE ";" "|" architectures "${given_architectures}")  # empty: those that its toolkit knows
ExternalProject_Add(terrace_cuda12
  SOURCE_DIR ${PROJECT_SOURCE_DIR}
  BINARY_DIR ${folder}
  PREFIX ${folder}/external
  LIST_SEPARATOR |
  CMAKE_ARGS -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_CUDA_COMPILER=${nvcc}
    -DCMAKE_CUDA_ARCHITECTURES=${architectures} -DCUDAToolkit_ROOT=${TERRACE_CUDA12_TOOLKIT} -DTERRACE_CUDA=ON
    -DTERRACE_NCCL=${TERRACE_NCCL} -DTERRACE_POOL=${TERRACE_POOL} -DTERRACE_WERROR=${TERRACE_WERROR} -DTERRACE_MPI=OFF
    -DTERRACE_TESTS=OFF -DTERRACE_BENCH=OFF
  BUILD_COMMAND ${CMAKE_COMMAND} --build <BINARY_DIR> --target terrace_cuda
  BUILD_ALWAYS ON
  INSTALL_COMMAND ${CMAKE_COMMAND} -E copy_if_different <BINARY_DIR>/modules/terrace_cuda12.so ${module}
  BUILD_BYPRODUCTS ${module}
  USES_TERMINAL_CONFIGURE ON
  USES_TERMINAL_BUILD ON)

# Installs the module with the rpath of an installation, and strips it if the installation strips.
function(install_cuda12)
  install(CODE "
    set(strip)
    if(CMAKE_INSTALL_DO_STRIP)
      set(strip --strip)
    endif()
    execute_process(COMMAND \"${CMAKE_COMMAND}\" --install \"${PROJECT_BINARY_DIR}/cuda12\" --component cuda
      --prefix \"\${CMAKE_INSTALL_PREFIX}\" \${strip} COMMAND_ERROR_IS_FATAL ANY)" ${ARGN})
endfunction()
install_cuda12(COMPONENT cuda)
