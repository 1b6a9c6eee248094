# SPDX-License-Identifier: MIT
# Finds the CUDA toolkit with cuDNN and makes CUDAdnn::CUDAdnn: the headers and the static runtime. A program opens the
# other libraries (NVRTC, cuBLASLt, cuDNN) when it needs them, so it also starts on a machine without them. CMake's own
# FindCUDAToolkit requires nvcc, which is not needed here, and does not find cuDNN.
set(_CUDAdnn_hints "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" "${CUDNN_ROOT}"
                   "$ENV{CUDNN_ROOT}" /usr/local/cuda /opt/cuda)
set(_CUDAdnn_suffixes include "targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include")
find_path(CUDAdnn_INCLUDE_DIR cuda_runtime_api.h HINTS ${_CUDAdnn_hints} PATH_SUFFIXES ${_CUDAdnn_suffixes})
foreach(_CUDAdnn_part nvrtc cublasLt cudnn)
  find_path(CUDAdnn_${_CUDAdnn_part}_INCLUDE_DIR ${_CUDAdnn_part}.h HINTS "${CUDAdnn_INCLUDE_DIR}" ${_CUDAdnn_hints}
            PATH_SUFFIXES ${_CUDAdnn_suffixes})
  mark_as_advanced(CUDAdnn_${_CUDAdnn_part}_INCLUDE_DIR)
endforeach()
find_library(CUDAdnn_LIBRARY cudart_static HINTS ${_CUDAdnn_hints}
             PATH_SUFFIXES lib64 lib "targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib")
mark_as_advanced(CUDAdnn_INCLUDE_DIR CUDAdnn_LIBRARY)

set(CUDAdnn_VERSION)
if(CUDAdnn_INCLUDE_DIR)
  file(STRINGS "${CUDAdnn_INCLUDE_DIR}/cuda_runtime_api.h" _CUDAdnn_line REGEX "define CUDART_VERSION +[0-9]+")
  if(_CUDAdnn_line MATCHES "CUDART_VERSION +([0-9]+)")
    math(EXPR _CUDAdnn_major "${CMAKE_MATCH_1} / 1000")
    math(EXPR _CUDAdnn_minor "${CMAKE_MATCH_1} % 1000 / 10")
    set(CUDAdnn_VERSION "${_CUDAdnn_major}.${_CUDAdnn_minor}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  CUDAdnn
  REQUIRED_VARS CUDAdnn_LIBRARY CUDAdnn_INCLUDE_DIR CUDAdnn_nvrtc_INCLUDE_DIR CUDAdnn_cublasLt_INCLUDE_DIR
                CUDAdnn_cudnn_INCLUDE_DIR
  VERSION_VAR CUDAdnn_VERSION)

if(CUDAdnn_FOUND AND NOT TARGET CUDAdnn::CUDAdnn)
  set(_CUDAdnn_includes "${CUDAdnn_INCLUDE_DIR}" "${CUDAdnn_nvrtc_INCLUDE_DIR}" "${CUDAdnn_cublasLt_INCLUDE_DIR}"
                        "${CUDAdnn_cudnn_INCLUDE_DIR}")
  list(REMOVE_DUPLICATES _CUDAdnn_includes)
  add_library(CUDAdnn::CUDAdnn UNKNOWN IMPORTED)
  set_target_properties(CUDAdnn::CUDAdnn PROPERTIES IMPORTED_LOCATION "${CUDAdnn_LIBRARY}"
                                                    INTERFACE_INCLUDE_DIRECTORIES "${_CUDAdnn_includes}"
                                                    INTERFACE_LINK_LIBRARIES "dl;rt")
  unset(_CUDAdnn_includes)
endif()
foreach(_CUDAdnn_part hints suffixes line major minor part)
  unset(_CUDAdnn_${_CUDAdnn_part})
endforeach()
